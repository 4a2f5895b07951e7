// Opens the command queue of a device queue.
#pragma once

#include "absl/status/statusor.h"
#include "engine/backend/torch/platform.h"
#include "engine/backend/torch/shared.h"
#include "engine/base/config.h"

namespace tandem {

// The queue that TorchShared::MakeQueue returns, or else the platform's. NOT_FOUND: no such device,
// or a build without CUDA. FAILED_PRECONDITION: a device or driver that this build does not
// support. Throws for other errors.
absl::StatusOr<OpenedQueue> open_queue(const DeviceConfig& config, TorchShared& shared);

}  // namespace tandem
