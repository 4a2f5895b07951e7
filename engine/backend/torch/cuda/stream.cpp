#include "engine/backend/torch/cuda/stream.h"

#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/refusals.h"
#include "engine/base/status.h"

namespace tandem::cuda {
namespace {

c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

// The facts if devices cannot be counted. A driver of version 0 means that there is no driver.
DeviceFacts without_devices(int device, cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  DeviceFacts f;
  f.device = device;
  f.error = cudaGetErrorString(error);
  f.old_driver = error == cudaErrorInsufficientDriver;
  f.runtime = CUDART_VERSION;
  // If this fails, there is no driver. The runtime may then fail to report even its own version.
  if (cudaDriverGetVersion(&f.driver) != cudaSuccess) f.driver = 0;
  static_cast<void>(cudaGetLastError());
  return f;
}

}  // namespace

absl::Status check_device(int device) {
  DeviceFacts f;
  f.device = device;
  if (const cudaError_t e = cudaGetDeviceCount(&f.count); e != cudaSuccess) {
    return refusal(without_devices(device, e));
  }
  if (device < f.count) {
    const c10::cuda::CUDAGuard on_device(index_of(device));
    f.has_code = has_machine_code();
    f.built_for = built_for();
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&f.major, cudaDevAttrComputeCapabilityMajor, device));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&f.minor, cudaDevAttrComputeCapabilityMinor, device));
  }
  return refusal(f);
}

absl::Status check_fp8(int device) {
  int major = 0, minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return fp8_refusal(device, major, minor);
}

absl::Status check_shape(const DecoderConfig& config) {
  if (config.head_dim <= max_head_dim()) return absl::OkStatus();
  return out_of_range("head_dim", config.head_dim,
                      absl::StrCat("1 to ", max_head_dim(), " on CUDA"));
}

void synchronize(int device) {
  const c10::cuda::CUDAGuard on_device(index_of(device));
  c10::cuda::device_synchronize();
}

int64_t free_bytes(int device) {
  const c10::cuda::CUDAGuard on_device(index_of(device));
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

bool reads_memory_of(int device, int other) {
  return at::cuda::get_p2p_access(index_of(device), index_of(other));
}

}  // namespace tandem::cuda
