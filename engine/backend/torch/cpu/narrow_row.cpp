#include "engine/backend/torch/cpu/narrow_row.h"

#include <algorithm>
#include <array>
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

using Group = hn::CappedTag<float, 16>;  // at most half of a group of 32 numbers
using GroupCodes = hn::RebindToSigned<Group>;
using GroupShorts = hn::Repartition<int16_t, Group>;
using GroupBytes = hn::Repartition<int8_t, Group>;
using GroupV = hn::Vec<Group>;
using GroupCodeV = hn::Vec<GroupCodes>;
using GroupShortV = hn::Vec<GroupShorts>;
using GroupByteV = hn::Vec<GroupBytes>;
constexpr auto kGroupLanes = static_cast<size_t>(hn::MaxLanes(Group()));
constexpr size_t kBlocks = kGroupLanes / 4;  // of 128 bits, in a vector

// Bit patterns of the maximum magnitudes of 32 numbers, for each lane.
HWY_INLINE GroupCodeV largest(const float* from) {
  const GroupCodes di;
  auto most = hn::Zero(di);
  for (size_t i = 0; i < 32; i += kGroupLanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(Group(), from + i))));
  }
  return most;
}

// quantize<127>() of 32 numbers. Returns the scale. sums: of the first and of the last 16 codes.
HWY_INLINE float quantize_group(int8_t* to, const float* from, int32_t sums[2]) {
  const Group d;
  const GroupCodes di;
  const hn::Rebind<int8_t, Group> narrow;
  const float max = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest(from))));
  const bool finite = std::isfinite(max);
  if (!finite || max < 0x1p-100f) {  // 1 / max would overflow
    std::fill_n(to, 32, int8_t{0});
    sums[0] = sums[1] = 0;
    return finite ? 1.f : std::numeric_limits<float>::quiet_NaN();
  }
  const auto inverse = hn::Set(d, 127 / max);
  for (size_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (size_t i = 16 * half; i < 16 * (half + 1); i += kGroupLanes) {
      const auto v = hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), inverse));
      sum = hn::Add(sum, v);
      hn::StoreU(hn::DemoteTo(narrow, v), narrow, to + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  return max / 127;
}

// The maximum of all lanes, for each of four vectors; in each block.
HWY_INLINE GroupCodeV largest_lanes(GroupCodeV a, GroupCodeV b, GroupCodeV c, GroupCodeV d) {
  const GroupCodes di;
  const hn::Repartition<int64_t, GroupCodes> pairs;
  const auto of_two = [&](GroupCodeV x, GroupCodeV y) HWY_ATTR {  // x y x y, of two lanes each
    return hn::BitCast(pairs,
                       hn::Max(hn::InterleaveLower(di, x, y), hn::InterleaveUpper(di, x, y)));
  };
  const auto ab = of_two(a, b), cd = of_two(c, d);
  auto all = hn::Max(hn::BitCast(di, hn::InterleaveLower(pairs, ab, cd)),
                     hn::BitCast(di, hn::InterleaveUpper(pairs, ab, cd)));
  if constexpr (kBlocks >= 2) all = hn::Max(all, hn::SwapAdjacentBlocks(all));
  if constexpr (kBlocks >= 4) all = hn::Max(all, hn::ReverseBlocks(di, all));
  return all;
}

// Demotes the lanes of each block of a, then of b. Highway has this for wider lanes only.
HWY_INLINE GroupByteV demote_shorts(GroupShortV a, GroupShortV b) {
#if HWY_TARGET == HWY_AVX3
  return GroupByteV{_mm512_packs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return GroupByteV{_mm256_packs_epi16(a.raw, b.raw)};
#else
  static_assert(kBlocks == 1);
  const hn::Half<GroupBytes> half;
  return hn::Combine(GroupBytes(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

// round(from * scale), a byte each, of the numbers of four vectors in their order.
HWY_INLINE GroupByteV rounded(const float* from, GroupV scale, GroupV last_scale) {
  const Group d;
  const GroupCodes di;
  const GroupShorts shorts;
  // A float of this size has no fraction, so the sum is rounded to nearest. The numbers are small.
  const float without_fraction = 0x1.8p23f;
  const auto codes = [&](size_t i, GroupV by) HWY_ATTR {
    const auto product = hn::Mul(hn::LoadU(d, from + i * kGroupLanes), by);
    return hn::Sub(hn::BitCast(di, hn::Add(product, hn::Set(d, without_fraction))),
                   hn::Set(di, std::bit_cast<int32_t>(without_fraction)));
  };
  const auto first = hn::ReorderDemote2To(shorts, codes(0, scale), codes(1, scale));
  const auto last = hn::ReorderDemote2To(shorts, codes(2, last_scale), codes(3, last_scale));
  // Demotion is within blocks: four codes of each vector.
  alignas(64) constexpr auto kOrder = [] {
    std::array<int32_t, kGroupLanes> from_lane{};
    for (size_t block = 0; block < kBlocks; ++block) {
      for (size_t i = 0; i < 4; ++i) {
        from_lane[kBlocks * i + block] = static_cast<int32_t>(4 * block + i);
      }
    }
    return from_lane;
  }();
  const auto words = hn::BitCast(di, demote_shorts(first, last));
  return hn::BitCast(GroupBytes(),
                     hn::TableLookupLanes(words, hn::SetTableIndices(di, kOrder.data())));
}

// Words after the codes of a group: sums, scale, scale * sum.
constexpr int kAfter = 5;

// Four groups of 32 numbers.
struct FourGroups {
  HWY_ALIGN int8_t codes[4 * 32];
  HWY_ALIGN int32_t after[kAfter][4];  // [..][group]
};

// quantize_group() of four groups, in less time. Returns false if it would not divide by the
// maximum of one of them.
HWY_INLINE bool quantize_four_groups(FourGroups& to, const float* from) {
  const Group d;
  const GroupCodes di;
  const GroupBytes bytes;
  const hn::Repartition<uint8_t, Group> magnitudes;
  const auto max = hn::BitCast(
      d, largest_lanes(largest(from), largest(from + 32), largest(from + 64), largest(from + 96)));
  const auto divides = hn::And(hn::IsFinite(max), hn::Ge(max, hn::Set(d, 0x1p-100f)));
  if (!hn::AllTrue(d, divides)) return false;
  HWY_ALIGN float scale[kGroupLanes];  // the first four
  hn::Store(hn::Div(max, hn::Set(d, 127)), d, scale);
  const auto inverse = hn::Div(hn::Set(d, 127), max);
  const GroupV scales[4] = {hn::Broadcast<0>(inverse), hn::Broadcast<1>(inverse),
                            hn::Broadcast<2>(inverse), hn::Broadcast<3>(inverse)};
  HWY_ALIGN int32_t sums[4 * 8];  // of 16 codes; each fourth element
  for (size_t i = 0; i < 128; i += 4 * kGroupLanes) {
    const auto codes = rounded(from + i, scales[i / 32], scales[(i + 2 * kGroupLanes) / 32]);
    hn::Store(codes, bytes, to.codes + i);
    // Sums of eight bytes from 0 to 254, then of the 16 of a block.
    const auto above = hn::BitCast(magnitudes, hn::Add(codes, hn::Set(bytes, 127)));
    const auto eights = hn::BitCast(di, hn::SumsOf8(above));
    const auto sixteens = hn::Add(eights, hn::Shuffle1032(eights));
    hn::Store(hn::Sub(sixteens, hn::Set(di, 16 * 127)), di, sums + i / 4);
  }
  HWY_ALIGN int32_t of_first[4], of_last[4];
  for (int g = 0; g < 4; ++g) {
    of_first[g] = sums[8 * g];
    of_last[g] = sums[8 * g + 4];
  }
  const hn::CappedTag<int32_t, 4> four;
  const hn::RebindToFloat<decltype(four)> df;
  const auto first = hn::Load(four, of_first), last = hn::Load(four, of_last);
  const auto sum = hn::Add(first, last);
  hn::Store(hn::Neg(hn::ShiftLeft<5>(first)), four, to.after[0]);
  hn::Store(hn::Neg(hn::ShiftLeft<5>(last)), four, to.after[1]);
  hn::Store(hn::Neg(hn::ShiftLeft<4>(sum)), four, to.after[2]);
  const auto by = hn::Load(df, scale);
  hn::Store(hn::BitCast(four, by), four, to.after[3]);
  hn::Store(hn::BitCast(four, hn::Mul(by, hn::ConvertTo(df, sum))), four, to.after[4]);
  return true;
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

// Writes the codes of a group of PreparedRows. Returns their end.
HWY_INLINE int32_t* write_codes(int32_t* to, const int8_t* codes, bool fours) {
  if (fours) {
    std::memcpy(to, codes, 32);
    return to + 8;
  }
  for (int k = 0; k < 32; k += 4, to += 2) {
    const auto pair = [&](int a) {
      const auto low = static_cast<uint16_t>(int16_t{codes[a]});
      const auto high = static_cast<uint16_t>(int16_t{codes[a + 2]});
      return static_cast<int32_t>(low | uint32_t{high} << 16);
    };
    to[0] = pair(k);
    to[1] = pair(k + 1);
  }
  return to;
}

// Writes the g-th of four groups. Returns its end.
HWY_INLINE int32_t* write_group(int32_t* to, const FourGroups& four, int g, bool fours) {
  const int8_t* const codes = four.codes + 32 * g;
  to = write_codes(to, codes, fours);
#if HWY_TARGET == HWY_AVX2
  *to++ = sum_in_halves(codes);
  *to++ = sum_in_halves(codes + 16);
  for (int i = 3; i < kAfter; ++i) *to++ = four.after[i][g];
#else
  for (int i = 0; i < kAfter; ++i) *to++ = four.after[i][g];
#endif
  return to;
}

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
  FourGroups four;
  const float* const end = from + n;
  while (from < end) {
    int groups = 4;
    if (end - from < 128 || !quantize_four_groups(four, from)) {
      groups = 1;
      int32_t sums[2];
      const float scale = quantize_group(four.codes, from, sums);
      const int32_t sum = sums[0] + sums[1];
      const int32_t after[] = {-32 * sums[0], -32 * sums[1], -16 * sum,
                               std::bit_cast<int32_t>(scale),
                               std::bit_cast<int32_t>(scale * static_cast<float>(sum))};
      for (int i = 0; i < kAfter; ++i) four.after[i][0] = after[i];
    }
    for (int g = 0; g < groups; ++g) to = write_group(to, four, g, fours);
    from += 32 * groups;
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
