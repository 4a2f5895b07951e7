// Names of devices in configurations and on command lines.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/config.h"

namespace tandem {

inline constexpr char kDeviceRule[] =
    "\"cpu:N\" or \"cuda:N\" with N in [0, 255], or one of these and \"/L\" with L in [1, 15]";

// "cpu:0", "cuda:1/2". The error is kDeviceRule.
absl::StatusOr<DeviceConfig> parse_device(absl::string_view name);

}  // namespace tandem
