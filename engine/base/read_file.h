// Reads small files. std::ifstream hides a failed read: `text << in.rdbuf()` keeps what was read,
// and std::istreambuf_iterator throws.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The whole file, or an error "PATH: cannot read: REASON": NOT_FOUND if there is no such file, else
// UNAVAILABLE. Also reads pipes and files of /proc, whose size is unknown.
absl::StatusOr<std::string> read_file(const std::string& path);

}  // namespace tandem
