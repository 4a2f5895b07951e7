#include "engine/backend/torch/cuda/lane.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

namespace tandem::cuda {

int device_count() { return c10::cuda::device_count(); }

void on_own_stream(int device, const std::function<void()>& loop) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const c10::cuda::CUDAGuard on_device(index);
  const c10::cuda::CUDAStreamGuard on_stream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index));
  loop();
}

void wait_for_stream() { c10::cuda::getCurrentCUDAStream().synchronize(); }

void synchronize(int device) {
  const c10::cuda::CUDAGuard on_device(static_cast<c10::DeviceIndex>(device));
  c10::cuda::device_synchronize();
}

int64_t free_bytes(int device) {
  const c10::cuda::CUDAGuard on_device(static_cast<c10::DeviceIndex>(device));
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

}  // namespace tandem::cuda
