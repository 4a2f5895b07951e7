// How much memory is free, and for what.
#pragma once

#include <cstdint>

#include "engine/base/config.h"

namespace tandem {

// What can be allocated without swapping: the kernel's estimate, or what the control group (a
// container's limit) leaves if that is less. 0 if neither can be read.
int64_t free_host_bytes();

// Whether weights are kept a second time, packed (DeviceConfig::packed_products). bytes: that this
// takes; free: what the weights have left over.
bool keeps_packed(const DeviceConfig& config, int64_t bytes, int64_t free);

}  // namespace tandem
