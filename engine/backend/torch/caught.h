// Exceptions of LibTorch and CUDA as statuses.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The current exception as a status; REQUIRES: called in a catch block. RESOURCE_EXHAUSTED: the
// host or the device is out of memory, and nothing is lost. UNAVAILABLE: the device is lost to this
// process. INTERNAL: other errors. doing: the message's prefix
absl::Status caught(absl::string_view doing);

}  // namespace tandem
