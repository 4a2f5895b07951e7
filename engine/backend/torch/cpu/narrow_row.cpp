#include "engine/backend/torch/cpu/narrow_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/cpu/quantized_tiles.h"
#include "engine/backend/torch/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/torch/cpu/narrow_row.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

struct Quantized {
  float scale;
  int32_t sum;  // of the codes
};

// to = round(from * Most / max |from|).
template <int Most, class T>
HWY_INLINE Quantized quantize(T* to, const float* from, size_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<T, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = n / lanes * lanes;
  // Magnitudes compare like their bit patterns; infinities and NaN are the largest.
  auto most = hn::Zero(di);
  for (size_t i = 0; i < whole; i += lanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i))));
  }
  int32_t bits = hn::GetLane(hn::MaxOfLanes(di, most));
  for (size_t i = whole; i < n; ++i)
    bits = std::max(bits, std::bit_cast<int32_t>(std::abs(from[i])));
  const float max = std::bit_cast<float>(bits);
  const bool finite = std::isfinite(max);
  if (!finite || max < 0x1p-100f) {  // 1 / max would overflow
    std::fill_n(to, n, T{0});
    return {finite ? 1.f : std::numeric_limits<float>::quiet_NaN(), 0};
  }
  const float inverse = Most / max;
  auto sums = hn::Zero(di);
  for (size_t i = 0; i < whole; i += lanes) {
    const auto v = hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, inverse)));
    sums = hn::Add(sums, v);
    hn::StoreU(hn::DemoteTo(narrow, v), narrow, to + i);
  }
  int32_t sum = hn::GetLane(hn::SumOfLanes(di, sums));
  for (size_t i = whole; i < n; ++i) {
    to[i] = static_cast<T>(std::lrint(from[i] * inverse));
    sum += to[i];
  }
  return {max / Most, sum};
}

// quantize<127>() of 32 numbers. Returns the scale. sums: of the first and of the last 16 codes.
HWY_INLINE float quantize_group(int8_t* to, const float* from, int32_t sums[2]) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> narrow;
  constexpr auto kLanes = static_cast<size_t>(hn::MaxLanes(decltype(d)()));
  auto most = hn::Zero(di);
  for (size_t i = 0; i < 32; i += kLanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i))));
  }
  const float max = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, most)));
  const bool finite = std::isfinite(max);
  if (!finite || max < 0x1p-100f) {  // 1 / max would overflow
    std::fill_n(to, 32, int8_t{0});
    sums[0] = sums[1] = 0;
    return finite ? 1.f : std::numeric_limits<float>::quiet_NaN();
  }
  const auto inverse = hn::Set(d, 127 / max);
  for (size_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (size_t i = 16 * half; i < 16 * (half + 1); i += kLanes) {
      const auto v = hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), inverse));
      sum = hn::Add(sum, v);
      hn::StoreU(hn::DemoteTo(narrow, v), narrow, to + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  return max / 127;
}

#if HWY_TARGET == HWY_AVX2
// The sum of 16 codes in two halves.
HWY_INLINE int32_t sum_in_halves(const int8_t* codes) {
  int32_t low = 0, high = 0;
  for (int i = 0; i < 16; i += 4) {
    low += codes[i] + codes[i + 1];
    high += codes[i + 2] + codes[i + 3];
  }
  return (low & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(high) << 16);
}
#endif

}  // namespace

float quantize_to_int16(int16_t* to, const float* from, int64_t n) {
  if (n % 2 != 0) to[n] = 0;
  return quantize<8191>(to, from, static_cast<size_t>(n)).scale;
}

void quantize_to_int8(int32_t* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kRowBlock) {
    const int64_t size = std::min(kRowBlock, n - i);
    const int64_t words = (size + 3) / 4;
    to[words] = 0;
    const Quantized q =
        quantize<127>(reinterpret_cast<int8_t*>(to + 1), from + i, static_cast<size_t>(size));
    to[0] = -128 * q.sum;
    to[words + 1] = std::bit_cast<int32_t>(q.scale);
    to += words + 2;
  }
}

void quantize_in_groups(int32_t* to, const float* from, int64_t n, bool fours) {
  for (int64_t i = 0; i < n; i += 32) {
    int8_t numbers[32];
    int32_t sums[2];
    const float scale = quantize_group(numbers, from + i, sums);
    if (fours) {
      std::memcpy(to, numbers, sizeof(numbers));
      to += 8;
    } else {
      for (int k = 0; k < 32; k += 4, to += 2) {
        const auto pair = [&](int a) {
          const auto low = static_cast<uint16_t>(int16_t{numbers[a]});
          const auto high = static_cast<uint16_t>(int16_t{numbers[a + 2]});
          return static_cast<int32_t>(low | uint32_t{high} << 16);
        };
        to[0] = pair(k);
        to[1] = pair(k + 1);
      }
    }
#if HWY_TARGET == HWY_AVX2
    *to++ = sum_in_halves(numbers);
    *to++ = sum_in_halves(numbers + 16);
#else
    *to++ = -32 * sums[0];
    *to++ = -32 * sums[1];
    *to++ = -16 * (sums[0] + sums[1]);
#endif
    *to++ = std::bit_cast<int32_t>(scale);
    *to++ = std::bit_cast<int32_t>(scale * static_cast<float>(sums[0] + sums[1]));
  }
}

void round_to_bfloat(uint16_t* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = BFloat16(from[i]).bits;
  if (n % 2 != 0) to[n] = 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(quantize_to_int16);
HWY_EXPORT(quantize_to_int8);
HWY_EXPORT(quantize_in_groups);
HWY_EXPORT(round_to_bfloat);

float quantize_row(int16_t* to, const float* from, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(quantize_to_int16)(to, from, n);
}

void quantize_row(int32_t* to, const float* from, int64_t n) {
  HWY_DYNAMIC_DISPATCH(quantize_to_int8)(to, from, n);
}

int quantized_words() {
  if (adjacent_words() > 1) return adjacent_words();
  return multiplies_fours() ? 13 : 21;
}

void quantize_groups(int32_t* to, const float* from, int64_t n) {
  HWY_DYNAMIC_DISPATCH(quantize_in_groups)(to, from, n, multiplies_fours());
}

void round_row(uint16_t* to, const float* from, int64_t n) {
  HWY_DYNAMIC_DISPATCH(round_to_bfloat)(to, from, n);
}

}  // namespace tandem::cpu
#endif
