// The platforms of this build.
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/platform.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/cuda_platform.h"
#endif

namespace tandem {
namespace {

// Null: a build without CUDA.
const Platform* cuda_platform() {
#ifdef TANDEM_CUDA
  return &cuda::platform();
#else
  return nullptr;
#endif
}

const Platform& platform_of_cpu(CpuKernels kernels) {
  return kernels == CpuKernels::kAten ? aten_platform() : cpu_platform();
}

}  // namespace

absl::StatusOr<const Platform*> find_platform(const DeviceConfig& config) {
  if (config.kind == DeviceKind::kCpu) return &platform_of_cpu(config.cpu_kernels);
  if (const Platform* cuda = cuda_platform(); cuda != nullptr) return cuda;
  return absl::NotFoundError(
      absl::StrCat("device: ", config.name(), "; allowed: cpu (this build has no CUDA)"));
}

const Platform& platform_of(at::Device device, CpuKernels kernels) {
  if (device.is_cpu()) return platform_of_cpu(kernels);
  const Platform* const cuda = device.is_cuda() ? cuda_platform() : nullptr;
  TORCH_CHECK(cuda != nullptr, "no kernels for ", device);
  return *cuda;
}

}  // namespace tandem
