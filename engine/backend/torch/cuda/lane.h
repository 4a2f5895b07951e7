// Devices and streams of CUDA, for the lane threads.
#pragma once

#include <cstdint>
#include <functional>

namespace tandem::cuda {

int device_count();  // 0 without a driver

// Calls `loop` with the device current, on a stream of its own.
void on_own_stream(int device, const std::function<void()>& loop);

// Returns when all that was put on the current stream is done. Throws for errors of the device.
void wait_for_stream();

void synchronize(int device);  // all streams

int64_t free_bytes(int device);

}  // namespace tandem::cuda
