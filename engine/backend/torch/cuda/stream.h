// Devices and queues of CUDA, for the device queues.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem::cuda {

// NOT_FOUND: no such device, with what the driver says where there is none at all.
// FAILED_PRECONDITION: the driver is too old for this build, or this build has no machine code for
// the device. Makes the device's context; throws where that fails.
absl::Status check_device(int device);

// INVALID_ARGUMENT: a shape that the kernels do not run.
absl::Status check_shape(const DecoderConfig& config);

// A stream for one device queue. Throws for errors of the device, like all that follows.
std::unique_ptr<Queue> open_queue(int device);

void synchronize(int device);  // all streams

int64_t free_bytes(int device);

// Whether kernels of `device` can read the memory of `other`; they may from here on.
bool reads_memory_of(int device, int other);

}  // namespace tandem::cuda
