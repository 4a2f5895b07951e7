#include "engine/base/device_name.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace tandem {

absl::StatusOr<DeviceConfig> parse_device(absl::string_view name) {
  DeviceConfig device;
  absl::string_view index = name;
  if (absl::StartsWith(name, "cpu:")) {
    index.remove_prefix(4);
  } else if (absl::StartsWith(name, "cuda:")) {
    device.kind = DeviceKind::kCuda;
    index.remove_prefix(5);
  } else {
    return absl::InvalidArgumentError(kDeviceRule);
  }
  const auto number = [](absl::string_view text, int* to) {
    return !text.empty() && text.size() <= 3 &&
           std::all_of(text.begin(), text.end(),
                       [](unsigned char c) { return absl::ascii_isdigit(c); }) &&
           absl::SimpleAtoi(text, to);
  };
  if (const size_t slash = index.find('/'); slash != absl::string_view::npos) {
    if (!number(index.substr(slash + 1), &device.queue) || device.queue < 1 || device.queue > 15) {
      return absl::InvalidArgumentError(kDeviceRule);
    }
    index = index.substr(0, slash);
  }
  if (!number(index, &device.index) || device.index > 255) {
    return absl::InvalidArgumentError(kDeviceRule);
  }
  return device;
}

}  // namespace tandem
