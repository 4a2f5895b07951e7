// Shared by the .cu files: types of tensors, the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/tensor_access.h"

namespace tandem::cuda {

inline cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

// Calls f.operator()<T>() for the type of a tensor, and throws the error of a launch in it.
template <class F>
void for_type(const at::Tensor& t, const F& f) {
  if (t.scalar_type() == at::kHalf) {
    f.template operator()<Half>();
  } else {
    for_number_type<BFloat16>(t, [&]<class T, class R>() { f.template operator()<T>(); });
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace tandem::cuda
