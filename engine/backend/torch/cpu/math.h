// Arithmetic that the compiler vectorizes, with an order of summation that depends only on the
// length: equal inputs give equal bits at any address and in any batch.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::cpu {

// The upper 16 bits of a float. Replaces c10::BFloat16 in code without LibTorch.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  // Rounds to nearest, ties to even. NaN stays NaN.
  explicit BFloat16(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    bits = x != x ? uint16_t{0x7fc0} : static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  explicit BFloat16(double x) : BFloat16(static_cast<float>(x)) {}
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  explicit operator double() const { return static_cast<float>(*this); }
  friend bool operator==(BFloat16 a, BFloat16 b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

// Arithmetic type of a storage type.
template <class T>
struct Accumulate {
  using Type = float;
};
template <>
struct Accumulate<double> {
  using Type = double;
};
template <class T>
using Accumulated = typename Accumulate<T>::Type;

inline constexpr int kLanes = 16;

// Pairwise sum of 16 partial sums.
template <class A>
inline A sum_lanes(const A (&lane)[kLanes]) {
  A s[kLanes];
  for (int i = 0; i < kLanes; ++i) s[i] = lane[i];
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) s[i] += s[i + step];
  }
  return s[0];
}

// Dot product of length n.
template <class A, class X, class Y>
inline A dot(const X* x, const Y* y, int n) {
  A lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] += static_cast<A>(x[i + l]) * static_cast<A>(y[i + l]);
  }
  for (int l = 0; i < n; ++i, ++l) lane[l] += static_cast<A>(x[i]) * static_cast<A>(y[i]);
  return sum_lanes(lane);
}

// out = x / sqrt(mean(x^2) + eps) * weight, over n elements.
template <class T, class R>
inline void rms_norm_row(T* out, const R* x, const R* weight, double eps, int64_t n) {
  const R mean = dot<R>(x, x, static_cast<int>(n)) / static_cast<R>(n);
  const R scale = R{1} / std::sqrt(mean + static_cast<R>(eps));
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(weight[i] * (x[i] * scale));
}

// e^x. The float version is a branch-free polynomial that the compiler vectorizes: relative error
// under 2e-7, 0 below -87, saturates at e^88, NaN propagates.
inline double exp_of(double x) { return std::exp(x); }
inline float exp_of(float x) {
  const float clamped = x > 88.f ? 88.f : x;  // in this form NaN propagates
  const float n = std::floor(clamped * 1.44269504f + 0.5f);
  // x - n ln 2 (Cody-Waite): the first product is exact
  float r = clamped - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  // Bounds the exponent for NaN and underflow; the return statement corrects these results.
  const float bounded = n > -126.f ? n : -126.f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(bounded) + 127) << 23);
  return x < -87.f ? 0.f : p * scale;
}

}  // namespace tandem::cpu
