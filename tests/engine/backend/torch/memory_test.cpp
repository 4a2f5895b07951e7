// What is decided of a device's memory.
#include "engine/backend/torch/memory.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(KeepsPacked, WhereHalfOfWhatIsLeftOverWillDo) {
  DeviceConfig device{.kind = DeviceKind::kCuda};
  EXPECT_TRUE(keeps_packed(device, 25, 100));  // pools take half of what is free
  EXPECT_FALSE(keeps_packed(device, 26, 100));
  device.memory_bytes = 80;
  EXPECT_TRUE(keeps_packed(device, 10, 100));
  EXPECT_FALSE(keeps_packed(device, 11, 100));
  device.memory_bytes = 200;  // which is refused when pools are made
  EXPECT_FALSE(keeps_packed(device, 1, 100));
}

TEST(KeepsPacked, AsConfigured) {
  DeviceConfig device{.kind = DeviceKind::kCuda, .packed_products = true};
  EXPECT_TRUE(keeps_packed(device, 1000, 100));
  EXPECT_FALSE(keeps_packed(device, 0, 100)) << "nothing to pack";
  device.packed_products = false;
  EXPECT_FALSE(keeps_packed(device, 1, 100));
}

TEST(KeepsPacked, OnCpusIfAskedTo) {
  EXPECT_FALSE(keeps_packed({}, 1, 100));
  EXPECT_TRUE(keeps_packed({.packed_products = true}, 1, 100));
}

}  // namespace
}  // namespace tandem
