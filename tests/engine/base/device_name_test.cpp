#include "engine/base/device_name.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(DeviceName, IsReadAndWritten) {
  for (const char* name : {"cpu:0", "cuda:1", "cuda:255/15"}) {
    const auto device = parse_device(name);
    ASSERT_TRUE(device.ok()) << name;
    EXPECT_EQ(device->name(), name);
  }
  EXPECT_EQ(parse_device("cpu:2/15")->index, 2);
  EXPECT_EQ(parse_device("cpu:2/15")->queue, 15);
  for (const char* name :
       {"", "cpu", "cpu:", "cpu:-1", "cpu:+1", "cpu: 1", "cpu:x", "CPU:0", "gpu:0", "cpu:0001",
        "cuda:-1", "cuda:256", "cpu:0/", "cpu:0/0", "cpu:0/16", "cpu:/1", "cpu:0/1/2"}) {
    EXPECT_EQ(parse_device(name).status().message(), kDeviceRule) << name;
  }
}

}  // namespace
}  // namespace tandem
