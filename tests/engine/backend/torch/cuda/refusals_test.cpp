#include "engine/backend/torch/cuda/refusals.h"

#include <gtest/gtest.h>

namespace tandem::cuda {
namespace {

// A machine with two supported devices.
DeviceFacts facts() {
  DeviceFacts f;
  f.device = 1;
  f.count = 2;
  f.driver = f.runtime = 13000;
  f.major = 9;
  f.built_for = "9.0";
  return f;
}

TEST(DeviceRefusals, ADeviceThatIsThereIsTaken) { EXPECT_TRUE(refusal(facts()).ok()); }

TEST(DeviceRefusals, NoSuchDevice) {
  DeviceFacts f = facts();
  f.device = 2;
  EXPECT_EQ(refusal(f),
            absl::NotFoundError("device: cuda:2; allowed: CUDA devices of this machine: 2"));
}

TEST(DeviceRefusals, NoDeviceAndNoDriver) {
  DeviceFacts f = facts();
  f.count = 0;
  f.error = "no CUDA-capable device is detected";
  EXPECT_EQ(refusal(f),
            absl::NotFoundError("device: cuda:1; allowed: CUDA devices of this machine: 0 (no "
                                "CUDA-capable device is detected)"));
  // Without any driver the runtime may report that it is too old.
  f.old_driver = true;
  f.driver = 0;
  EXPECT_EQ(refusal(f),
            absl::NotFoundError("device: cuda:1; allowed: CUDA devices of this machine: 0 (no "
                                "driver for NVIDIA's)"));
}

TEST(DeviceRefusals, ADriverThatIsTooOld) {
  DeviceFacts f = facts();
  f.count = 0;
  f.error = "CUDA driver version is insufficient for CUDA runtime version";
  f.old_driver = true;
  f.driver = 12080;
  EXPECT_EQ(refusal(f),
            absl::FailedPreconditionError("device: cuda:1: its driver is for CUDA 12.8; allowed: a "
                                          "driver for CUDA 13.0 or newer"));
}

TEST(DeviceRefusals, AnotherComputeCapability) {
  DeviceFacts f = facts();
  f.has_code = false;
  f.major = 7;
  f.minor = 5;
  EXPECT_EQ(refusal(f),
            absl::FailedPreconditionError("device: cuda:1: compute capability 7.5; allowed: what "
                                          "this build is for: 9.0"));
}

}  // namespace
}  // namespace tandem::cuda
