// Devices and streams of CUDA, for the lanes.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem::cuda {

// NOT_FOUND: no such device, with what the driver says where there is none at all.
// FAILED_PRECONDITION: this build has no machine code for it. Makes the device's context; throws
// where that fails.
absl::Status check_device(int device);

// INVALID_ARGUMENT: a shape that the kernels do not run.
absl::Status check_shape(const DecoderConfig& config);

// A stream for one lane. Throws for errors of the device, like all that follows.
c10::Stream open_stream(int device);

// Calls `loop` with the stream and its device current.
void on_stream(const c10::Stream& stream, const std::function<void()>& loop);

// Returns when all that was put on the current stream is done.
void wait_for_stream();

void synchronize(int device);  // all streams

int64_t free_bytes(int device);

// Whether kernels of `device` can read the memory of `other`; they may from here on.
bool reads_memory_of(int device, int other);

}  // namespace tandem::cuda
