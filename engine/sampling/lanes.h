// Loops over a row that compilers vectorize although sums may not be reordered.
//
// A row is cut into blocks, and a block into kLanes interleaved lanes. Partial sums per lane are
// added in order at the end of each block. So the result does not depend on the register width.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tandem::sampling {

inline constexpr size_t kLanes = 16;
inline constexpr size_t kBlock = 1024;  // floats

// exp(x) for x <= 0, to 2 units in the last place, 0 below -87 (the smallest normal numbers).
// Branch-free, after Cephes' expf.
inline float exp_nonpositive(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  const float result = y * std::bit_cast<float>(power);
  return x < -87.0f ? 0.0f : result;
}

// Sum of value(i) for i in [begin, end), with end - begin <= kBlock.
template <class Value>
double block_sum(size_t begin, size_t end, Value value) {
  double lane[kLanes] = {};
  size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lane[j] += value(i + j);
  }
  for (size_t j = 0; i < end; ++i, ++j) lane[j] += value(i);
  double total = 0;
  for (const double partial : lane) total += partial;
  return total;
}

// Sum of value(i) for i in [0, size). `value` may store its results.
template <class Value>
double row_sum(size_t size, Value value) {
  double total = 0;
  for (size_t begin = 0; begin < size; begin += kBlock) {
    total += block_sum(begin, std::min(begin + kBlock, size), value);
  }
  return total;
}

}  // namespace tandem::sampling
