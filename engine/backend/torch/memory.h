// How much memory of the host is free for pools.
#pragma once

#include <cstdint>

namespace tandem {

// What can be allocated without swapping: the kernel's estimate, or what the control group (a
// container's limit) leaves if that is less. 0 if neither can be read.
int64_t free_host_bytes();

}  // namespace tandem
