// Why a device is not taken, from what the runtime says of the machine. Without CUDA's headers, so
// that tests can say it too.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::cuda {

// What there is to be said of device `device`.
struct DeviceFacts {
  int device = 0;
  int count = 0;            // of devices; where they could not be counted, 0 and:
  std::string error;        // the runtime's words
  bool old_driver = false;  // it says that the driver is too old for it
  int driver = 0;   // what the driver is for, as CUDA numbers it (13000: 13.0); 0: there is none
  int runtime = 0;  // what this build is for, likewise
  bool has_code = true;      // this build has machine code for the device
  int major = 0, minor = 0;  // its compute capability, where there is none
  std::string built_for;     // compute capabilities of this build
};

// NOT_FOUND: no such device; FAILED_PRECONDITION: a driver that is too old, or no machine code. OK:
// it is taken.
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

}  // namespace tandem::cuda
