#include "engine/backend/torch/cuda/lane.h"

#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/base/status.h"

namespace tandem::cuda {
namespace {

c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

// CUDA's way of numbering: 13000 is 13.0.
std::string version_text(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Why there are no devices. A driver of version 0 is none at all.
absl::Status without_devices(const std::string& field, cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  int driver = 0;
  // Where it fails, too, there is none. (Asking the runtime for its own version may fail then.)
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorInsufficientDriver && driver > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(field, ": its driver is for CUDA ", version_text(driver),
                     "; allowed: a driver for CUDA ", version_text(CUDART_VERSION), " or newer"));
  }
  return absl::NotFoundError(
      absl::StrCat(field, "; allowed: CUDA devices of this machine: 0 (",
                   driver == 0 ? "no driver for NVIDIA's" : cudaGetErrorString(error), ")"));
}

}  // namespace

absl::Status check_device(int device) {
  const std::string field = absl::StrCat("device: cuda:", device);
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    return without_devices(field, e);
  }
  if (device >= count) {
    return absl::NotFoundError(
        absl::StrCat(field, "; allowed: CUDA devices of this machine: ", count));
  }
  const c10::cuda::CUDAGuard on_device(index_of(device));
  if (has_machine_code()) return absl::OkStatus();
  int major = 0;
  int minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return absl::FailedPreconditionError(
      absl::StrCat(field, ": compute capability ", major, ".", minor,
                   "; allowed: what this build is for: ", built_for()));
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
