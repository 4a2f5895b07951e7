// How much memory is free, and for what.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// What can be allocated without swapping: the kernel's estimate, or what the control group (a
// container's limit) leaves if that is less. 0 if neither can be read.
int64_t free_host_bytes();

// Gives the system back what the process has freed and its allocator keeps: after loading, tens of
// MB that files and tokenizers took on the way.
void return_freed_memory();

// A device queue whose weights may be kept a second time, packed, if there is memory for it.
struct PackableDevice {
  int gpu = 0;  // device queues of one GPU have one memory
  std::function<int64_t()> free_bytes;
  // Packs what takes at most so many bytes. Bytes that it took
  std::function<absl::StatusOr<int64_t>(int64_t most)> pack;
};

// To be called when weights and pools of all device queues are there: of what these leave over,
// half is for packed weights, of all device queues of a GPU together.
absl::Status pack_in_turn(const std::vector<PackableDevice>& device_queues);

}  // namespace tandem
