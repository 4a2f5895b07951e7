// What LibTorch and CUDA throw, as statuses.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// What is being thrown, as a status; to be called in a catch block. By the errors' types and codes:
// RESOURCE_EXHAUSTED: a shortage of the host's memory or the device's, which loses nothing;
// UNAVAILABLE: the device is lost to this process; INTERNAL: all else.
absl::Status caught(absl::string_view doing);

}  // namespace tandem
