// The `limits` of a deployment file.
#pragma once

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/host/config/config_file.h"

namespace tandem {

// Sets the fields of `out` that `limits` sets. Errors name field and range.
absl::Status limits_from(const ConfigFile& file, LimitsConfig* out);

}  // namespace tandem
