// Error messages for devices that cannot be used. Without CUDA's headers, for tests.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::cuda {

// The runtime's facts about device `device`.
struct DeviceFacts {
  int device = 0;
  int count = 0;             // of devices; 0 if they could not be counted:
  std::string error;         // then the runtime's message
  bool old_driver = false;   // the driver is too old for the runtime
  int driver = 0;            // the CUDA version of the driver (13000: 13.0); 0: no driver
  int runtime = 0;           // the CUDA version of this build
  bool has_code = true;      // this build has machine code for the device
  int major = 0, minor = 0;  // its compute capability, if there is no code
  std::string built_for;     // compute capabilities of this build
};

// NOT_FOUND: no such device. FAILED_PRECONDITION: the driver is too old, or there is no machine
// code. OK: the device can be used.
inline absl::Status refusal(const DeviceFacts& f) {
  const auto version = [](int v) { return absl::StrCat(v / 1000, ".", v % 1000 / 10); };
  const std::string field = absl::StrCat("device: cuda:", f.device, "; allowed: ");
  const std::string own = absl::StrCat("device: cuda:", f.device, ": ");
  if (f.old_driver && f.driver > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(own, "its driver is for CUDA ", version(f.driver),
                     "; allowed: a driver for CUDA ", version(f.runtime), " or newer"));
  }
  if (!f.error.empty()) {
    return absl::NotFoundError(absl::StrCat(field, "CUDA devices of this machine: 0 (",
                                            f.driver == 0 ? "no driver for NVIDIA's" : f.error,
                                            ")"));
  }
  if (f.device >= f.count) {
    return absl::NotFoundError(absl::StrCat(field, "CUDA devices of this machine: ", f.count));
  }
  if (f.has_code) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(own, "compute capability ", f.major, ".", f.minor,
                   "; allowed: what this build is for: ", f.built_for));
}

// Whether a device of this compute capability has products in fp8. FAILED_PRECONDITION: no.
inline absl::Status fp8_refusal(int device, int major, int minor) {
  if (major > 8 || (major == 8 && minor >= 9)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "dtype: fp8; allowed: auto, fp32, bf16, fp16, fp64, int4, q4_0, stored on cuda:", device,
      " of compute capability ", major, ".", minor, " (fp8: 8.9 or above)"));
}

}  // namespace tandem::cuda
