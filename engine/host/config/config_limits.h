// The `limits` of a deployment file.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/host/config/config_file.h"

namespace tandem {

// Defaults if all devices are GPUs. Those of LimitsConfig are for CPUs.
inline constexpr int kGpuStepRows = 4096;
inline constexpr int kGpuChunkRows = 2048;

// Sets the fields of `out` that `limits` sets, and rows of a batch for these devices. Errors name
// field and range.
absl::Status limits_from(const ConfigFile& file, const std::vector<DeviceConfig>& devices,
                         LimitsConfig* out);

}  // namespace tandem
