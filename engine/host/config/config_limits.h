// The part of a deployment file that bounds what runs and waits, and what each client may do.
#pragma once

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/host/config/config_file.h"

namespace tandem {

// Fills `out` with what is set in `limits`; the error names field and range.
absl::Status limits_from(const ConfigFile& file, LimitsConfig* out);

}  // namespace tandem
