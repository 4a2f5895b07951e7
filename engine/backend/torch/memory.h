// Free memory, and its use for packed weights.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Bytes that can be allocated without swapping: the kernel's estimate, or the rest of the control
// group's limit if that is less. 0: neither can be read.
int64_t free_host_bytes();

// Returns freed memory from the allocator to the system: after loading, tens of MB.
void return_freed_memory();

// A device queue whose weights get a packed copy if there is memory for it.
struct PackableDevice {
  int gpu = 0;  // its memory is shared by all its device queues
  std::function<int64_t()> free_bytes;
  // Packs copies of at most `most` bytes. Returns their bytes.
  std::function<absl::StatusOr<int64_t>(int64_t most)> pack;
};

// Packs weights in half of the memory that is free on each GPU, for all its device queues together.
// REQUIRES: weights and pools of all device queues are allocated
absl::Status pack_in_turn(const std::vector<PackableDevice>& device_queues);

}  // namespace tandem
