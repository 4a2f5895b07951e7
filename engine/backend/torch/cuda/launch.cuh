// What the kernel files share: types, reductions, launching on the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>

#include <cstdint>

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
  switch (t.scalar_type()) {
    case at::kFloat:
      return f(TypeTag<float>());
    case at::kDouble:
      return f(TypeTag<double>());
    case at::kBFloat16:
      return f(TypeTag<c10::BFloat16>());
    default:
      TORCH_CHECK(false, "no arithmetic in ", t.scalar_type());
  }
}

template <class T>
T* data(at::Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}
template <class T>
const T* data(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
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
