// A device's own queue, and what is to be said of the device.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/shared.h"
#include "engine/base/config.h"

namespace tandem {

struct OpenedQueue {
  std::unique_ptr<Queue> queue;  // null: a CPU device, where all happens at once
  std::string peers;             // which other devices' memory it reads; "": there are none
};

// Makes a CUDA device's context. NOT_FOUND: no such CUDA device, or a build without CUDA.
// FAILED_PRECONDITION: one that this build has no machine code for, or too old a driver. Throws for
// other errors.
absl::StatusOr<OpenedQueue> open_queue(const DeviceConfig& config, TorchShared& shared);

}  // namespace tandem
