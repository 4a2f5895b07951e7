// CUDA devices and their streams, for CudaPlatform. Errors of a device are thrown.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem::cuda {

// Makes the device's context. NOT_FOUND: no such device. FAILED_PRECONDITION: the driver is too old
// for this build, or this build has no machine code for the device.
absl::Status check_device(int device);

// FAILED_PRECONDITION: the device has no products in fp8.
absl::Status check_fp8(int device);

// INVALID_ARGUMENT: a shape that the kernels do not support.
absl::Status check_shape(const DecoderConfig& config);

// A new stream.
std::unique_ptr<Queue> open_queue(int device);

void synchronize(int device);  // all streams

int64_t free_bytes(int device);

// Whether kernels of `device` can read the memory of `other`. Enables it if possible.
bool reads_memory_of(int device, int other);

}  // namespace tandem::cuda
