// Element types of the kernels, and their arithmetic types.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/platform.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <bit>
#endif

namespace tandem::cuda {

// Rounds to nearest, ties to even; NaN stays NaN. Same bits as c10::BFloat16 and c10::Half.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  __host__ __device__ explicit BFloat16(float x) : bits(round(x)) {}
  __host__ __device__ explicit BFloat16(double x) : BFloat16(static_cast<float>(x)) {}
  __host__ __device__ explicit operator float() const {
#ifdef __CUDACC__
    return __bfloat162float(__ushort_as_bfloat16(bits));
#else
    return std::bit_cast<float>(uint32_t{bits} << 16);
#endif
  }
  __host__ __device__ explicit operator double() const { return static_cast<float>(*this); }

 private:
  __host__ __device__ static uint16_t round(float x) {
#ifdef __CUDACC__
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    const auto u = std::bit_cast<uint32_t>(x);
    return x != x ? uint16_t{0x7fc0} : static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
  }
};

struct Half {
  uint16_t bits;

  Half() = default;
  __host__ __device__ explicit Half(float x) : bits(round(x)) {}
  __host__ __device__ explicit Half(double x) : Half(static_cast<float>(x)) {}
  __host__ __device__ explicit operator float() const {
#ifdef __CUDACC__
    return __half2float(__ushort_as_half(bits));
#else
    return static_cast<float>(std::bit_cast<_Float16>(bits));
#endif
  }
  __host__ __device__ explicit operator double() const { return static_cast<float>(*this); }

 private:
  __host__ __device__ static uint16_t round(float x) {
#ifdef __CUDACC__
    return __half_as_ushort(__float2half_rn(x));
#else
    return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
#endif
  }
};

template <class T>
inline constexpr bool is_half = false;
template <>
inline constexpr bool is_half<Half> = true;

// Type of the residual stream and of arithmetic, for a product type.
template <class T>
struct ResidualOf {
  using Type = float;
};
template <>
struct ResidualOf<double> {
  using Type = double;
};
template <class T>
using Residual = typename ResidualOf<T>::Type;

// Sum over a warp; all lanes get the result.
template <class A>
__device__ A warp_sum(A x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace tandem::cuda
