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

TEST(DeviceRefusals, ASupportedDeviceIsAccepted) { EXPECT_TRUE(refusal(facts()).ok()); }

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
  // Without any driver, the runtime may report one that is too old.
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

TEST(DeviceRefusals, NoProductsInFp8) {
  EXPECT_EQ(
      fp8_refusal(1, 8, 6),
      absl::FailedPreconditionError(
          "dtype: fp8; allowed: auto, fp32, bf16, fp16, fp64, int4, q4_0, stored on cuda:1 of "
          "compute capability 8.6 (fp8: 8.9 or above)"));
  EXPECT_FALSE(fp8_refusal(0, 7, 9).ok());
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {12, 1}}) {
    EXPECT_TRUE(fp8_refusal(0, major, minor).ok());
  }
}

}  // namespace
}  // namespace tandem::cuda
