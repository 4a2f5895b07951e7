// Rows in fp8: e4m3 (arXiv:2209.05433), without infinities.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"

namespace tandem::cuda {

inline constexpr float kRoundedMost = 448;  // the largest number of e4m3

// Rounds to nearest, ties to even; above 464 and for NaN, to NaN. Same bits as
// c10::Float8_e4m3fn.
__device__ inline uint8_t to_e4m3(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t most = bits & 0x7fffffffu;
  uint32_t code = 0x7f;
  if (most < 0x3c800000u) {  // 2^-6: below it, steps of 2^-9
    code = static_cast<uint32_t>(rint(__uint_as_float(most) * 512.0f));
  } else if (most < 0x43f00000u) {  // 480
    code = ((most + (mutated(Mutant::kFp8Truncated) ? 0u : 0x7ffffu + (most >> 20 & 1))) >> 20) -
           (120u << 3);
  }
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

// The largest of the thread block's x; all threads get the result.
__device__ inline uint32_t block_most(uint32_t x, BlockSums<uint32_t>& shared) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    x = max(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  if (!mutated(Mutant::kFp8WithoutBarrier)) __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) x = max(x, static_cast<uint32_t>(shared[w]));
  return x;
}

// One thread block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    round_rows_kernel(Ptr<uint8_t> codes, Ptr<float> scales, Ptr<const T> x, int64_t width) {
  begin_launch();
  __shared__ BlockSums<uint32_t> shared;
  const int64_t r = blockIdx.x;
  const Ptr<const T> from = x + r * width;
  const OwnElements<const T, float> own(from, width);
  // Compares bit patterns, so that NaN is the maximum.
  uint32_t most = 0;
  own.each([&](int u, int64_t i) {
    if (mutated(Mutant::kFp8Most) && i >= kThreads) return;
    most = max(most, __float_as_uint(own.at(u, i)) & 0x7fffffffu);
  });
  const float top = __uint_as_float(block_most(most, shared));
  const float scale = top < kRoundedMost * 0x1p-126f ? 0x1p-126f : __fdiv_rn(top, kRoundedMost);
  own.each(
      [&](int u, int64_t i) { codes[r * width + i] = to_e4m3(__fdiv_rn(own.at(u, i), scale)); });
  if (threadIdx.x == 0) scales[mutated(Mutant::kFp8FirstScale) ? 0 : r] = scale;
}

// codes[r] = x[r] / scales[r] in e4m3, scales[r] = the largest magnitude of x[r] / 448, at least
// 2^-126. A row with NaN or Inf gets at least one NaN. codes, x: [rows, width]; scales: [rows]. T:
// BFloat16, Half or float
template <class T>
void round_rows(Stream stream, Ptr<uint8_t> codes, Ptr<float> scales, Ptr<const T> x, int64_t rows,
                int64_t width) {
  launch(stream, round_rows_kernel<T>, {kThreads, rows}, codes, scales, x, width);
}

}  // namespace tandem::cuda
