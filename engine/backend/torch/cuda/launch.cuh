// What the kernel files share: types, reductions, launching on the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>

#include <cstdint>

#include "engine/backend/torch/tensor_access.h"

namespace tandem::cuda {

inline constexpr int kWarp = 32;

inline cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

// Type of products -> type of residual stream and arithmetic.
template <class T>
struct Residual {
  using type = float;
};
template <>
struct Residual<double> {
  using type = double;
};

template <class T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>()) for the type of a tensor.
template <class F>
void for_type(const at::Tensor& t, const F& f) {
  for_number_type<c10::BFloat16>(t, [&]<class T, class R>() { f(TypeTag<T>()); });
}

// Sum over a warp; every lane gets it.
template <class A>
__device__ A warp_sum(A x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

inline unsigned blocks_for(int64_t n, int threads) {
  const int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 65535 ? blocks : 65535);
}

}  // namespace tandem::cuda
