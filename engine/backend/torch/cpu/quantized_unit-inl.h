// Vector access to the codes and scales of a unit (quantized_matrix.h), for files that Highway
// compiles once per target.
#if defined(TANDEM_CPU_QUANTIZED_UNIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_QUANTIZED_UNIT_INL_H_
#undef TANDEM_CPU_QUANTIZED_UNIT_INL_H_
#else
#define TANDEM_CPU_QUANTIZED_UNIT_INL_H_
#endif

#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kUnit = QuantizedMatrix::kUnit;
constexpr int kColumns = QuantizedMatrix::kColumns;

// Whether the scales of a format are decoded before the products. The others are only converted
// from fp16.
constexpr bool decodes_scales(const QuantFormat& f) { return f.inputs() == 256; }
// Groups of 32 inputs whose scales are decoded together.
constexpr int kGroupsTogether = 16;

// Decoded scales of the columns of a unit. [g][0]: the scale of a group; [g][1]: its minimum,
// negated. With Q6_K: the scales of the first and of the last 16 inputs.
struct Scales {
  HWY_ALIGN float of[kGroupsTogether][2][kUnit];
};

// Bytes of a group of a unit, including its part of the scales.
template <QuantFormat Format>
constexpr size_t kGroupBytes = QuantizedMatrix::code_bytes(Format) +
                               QuantizedMatrix::scale_bytes(Format) * 32 / Format.inputs();

// Groups of a unit to multiply with a group of rows.
struct Tile {
  const uint8_t* codes;
  const uint8_t* scales;  // of the first group, as stored
  const Scales* decoded;  // if decodes_scales(): at most kGroupsTogether groups
  int64_t groups;
  int rows;
  const int32_t* x;  // of a group of PreparedRows
  // Address to prefetch, advanced by ahead_step with each group.
  const uint8_t* ahead;
  size_t ahead_step;
  // With both units of a panel at once: addresses from skip_from on are of the other unit. The same
  // unit of the next panel is `skip` bytes further.
  const uint8_t* skip_from;
  size_t skip;
  bool two_levels;       // ahead: into the L2 cache; codes that follow soon: into the L1 cache
  bool prefetches_rows;  // the rows do not fit into the L1 cache; AVX2 does not use this
  float* totals;         // [rows][kColumns], for the columns of the unit; added to
};

// Prefetch distance into the L1 cache in bytes, with Tile::two_levels.
constexpr size_t kAheadInL1 = 2048;

// Prefetches for a group at `codes`.
template <QuantFormat Format>
HWY_INLINE void prefetch_weights(const Tile& tile, const uint8_t* codes, const uint8_t* ahead) {
  if (!tile.two_levels) {
    for (size_t line = 0; line < kGroupBytes<Format>; line += 64) hwy::Prefetch(ahead + line);
    return;
  }
  for (size_t line = 0; line < kGroupBytes<Format>; line += 64) {
    __builtin_prefetch(ahead + line, 0, 2);
    hwy::Prefetch(codes + kAheadInL1 + line);
  }
}

// A vector with one element per column of a unit, or of as many columns as fit. A slice is that set
// of columns.
using Floats = hn::CappedTag<float, kUnit>;
using Ints = hn::RebindToSigned<Floats>;
using Shorts = hn::Repartition<int16_t, Ints>;
using FloatV = hn::Vec<Floats>;
using IntV = hn::Vec<Ints>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int kSlices = kUnit / kLanes;

// Shifts by i within bytes. The caller masks out bits of adjacent bytes. i is known after
// unrolling.
HWY_INLINE IntV left(IntV v, int i) {
  switch (i) {
    case 0:
      return v;
    case 1:
      return hn::ShiftLeft<1>(v);
    case 2:
      return hn::ShiftLeft<2>(v);
    case 3:
      return hn::ShiftLeft<3>(v);
    default:
      return hn::ShiftLeft<4>(v);
  }
}
HWY_INLINE IntV right(IntV v, int i) {
  switch (i) {
    case 0:
      return v;
    case 1:
      return hn::ShiftRight<1>(v);
    case 2:
      return hn::ShiftRight<2>(v);
    case 3:
      return hn::ShiftRight<3>(v);
    default:
      return hn::ShiftRight<4>(v);
  }
}
HWY_INLINE IntV load_bytes(const uint8_t* from) {
  return hn::Load(Ints(), reinterpret_cast<const int32_t*>(from));
}
HWY_INLINE IntV all_bytes(uint32_t byte) {
  return hn::Set(Ints(), static_cast<int32_t>(byte * 0x01010101u));
}

// Codes of inputs 4i .. 4i + 3 (low) and 16 + 4i .. 16 + 4i + 3 (high), a byte each. at: codes of
// 32 inputs, at the slice's first column.
template <int Bits>
HWY_INLINE void unpack(const uint8_t* at, int i, IntV& low, IntV& high) {
  if constexpr (Bits == 8) {
    low = load_bytes(at + 64 * i);
    high = load_bytes(at + 64 * (i + 4));
    return;
  }
  const IntV both = load_bytes(at + 64 * i);
  const IntV nibble = all_bytes(15);
  low = hn::And(both, nibble);
  high = hn::And(hn::ShiftRight<4>(both), nibble);
  if constexpr (Bits == 5) {
    const IntV fifths = load_bytes(at + 256), bit = all_bytes(16);
    low = hn::Or(low, hn::And(left(fifths, 4 - i), bit));
    high = hn::Or(high, hn::And(right(fifths, i), bit));
  } else if constexpr (Bits == 6) {
    const IntV bits = all_bytes(48);
    const IntV a = load_bytes(at + 256), b = load_bytes(at + 320);
    low = hn::Or(low, hn::And(i < 3 ? left(a, 4 - 2 * i) : right(a, 2), bits));
    high = hn::Or(high, hn::And(i < 3 ? left(b, 4 - 2 * i) : right(b, 2), bits));
  }
}

HWY_INLINE FloatV load_halves(const uint8_t* from) {
  const hn::Rebind<hwy::float16_t, Floats> d;
  return hn::PromoteTo(Floats(), hn::Load(d, reinterpret_cast<const hwy::float16_t*>(from)));
}

// The i-th of the sixteen 6-bit numbers of Q4_K and Q5_K. words: at the slice's first column.
HWY_INLINE FloatV six(const uint8_t* words, int i) {
  const auto word = [&](int k) HWY_ATTR {
    return hn::BitCast(hn::RebindToUnsigned<Ints>(), load_bytes(words + 64 * k));
  };
  auto v = word(i / 5 % 3);
  if (i < 15) {
    v = hn::And(hn::ShiftRightSame(v, i % 5 * 6), hn::Set(hn::RebindToUnsigned<Ints>(), 63));
  } else {
    v = hn::Or(hn::ShiftRight<30>(v), hn::Or(hn::ShiftLeft<2>(hn::ShiftRight<30>(word(1))),
                                             hn::ShiftLeft<4>(hn::ShiftRight<30>(word(2)))));
  }
  return hn::ConvertTo(Floats(), hn::BitCast(Ints(), v));
}

// Scale and minimum (subtracted) of the g-th 32 inputs of a block. at: the block's scales.
template <QuantScales Kind>
HWY_INLINE void load_scales(const uint8_t* at, int slice, int g, FloatV& scale, FloatV& less) {
  const size_t halves = 2 * static_cast<size_t>(kLanes * slice);
  scale = load_halves(at + halves);
  if constexpr (Kind == QuantScales::kScaleAndMin) {
    less = hn::Neg(load_halves(at + 32 + halves));
  } else if constexpr (Kind == QuantScales::kTwoLevels) {
    const uint8_t* words = at + 64 + 2 * halves;
    scale = hn::Mul(scale, six(words, g));
    less = hn::Mul(load_halves(at + 32 + halves), six(words, 8 + g));
  }
}

// Q6_K: the scale of the g-th 16 inputs.
HWY_INLINE FloatV scale_of_sixteen(const uint8_t* at, int slice, int g) {
  const hn::Rebind<int8_t, Ints> d8;
  const auto first = static_cast<size_t>(kLanes * slice);
  const auto* s = reinterpret_cast<const int8_t*>(at) + 16 * g + first;
  const IntV wide = hn::PromoteTo(Ints(), hn::Load(d8, s));
  return hn::Mul(load_halves(at + 256 + 2 * first), hn::ConvertTo(Floats(), wide));
}

// Decodes the scales of `groups` groups. at: the scales of the first block of eight.
template <QuantFormat Format>
HWY_INLINE void decode_scales(const uint8_t* at, int64_t groups, Scales& to) {
  static_assert(decodes_scales(Format));
  const Floats d;
  for (int64_t begin = 0; begin < groups; begin += 8) {
    HWY_UNROLL(8)
    for (int g = 0; g < 8; ++g) {
      float(*scales)[kUnit] = to.of[begin + g];
      HWY_UNROLL(kSlices)
      for (int s = 0; s < kSlices; ++s) {
        FloatV first, second;
        if constexpr (Format.scales == QuantScales::kSixteens) {
          first = scale_of_sixteen(at, s, 2 * g);
          second = scale_of_sixteen(at, s, 2 * g + 1);
        } else {
          load_scales<Format.scales>(at, s, g, first, second);
          second = hn::Neg(second);
        }
        hn::Store(first, d, scales[0] + s * kLanes);
        hn::Store(second, d, scales[1] + s * kLanes);
      }
    }
    at += QuantizedMatrix::scale_bytes(Format);
  }
}

// The two scales of the g-th group of a tile.
template <QuantFormat Format>
HWY_INLINE void scales_of(const Tile& tile, int64_t g, int slice, FloatV& first, FloatV& second) {
  if constexpr (decodes_scales(Format)) {
    first = hn::Load(Floats(), tile.decoded->of[g][0] + slice * kLanes);
    second = hn::Load(Floats(), tile.decoded->of[g][1] + slice * kLanes);
  } else {
    load_scales<Format.scales>(
        tile.scales + static_cast<size_t>(g) * QuantizedMatrix::scale_bytes(Format), slice, 0,
        first, second);
    if constexpr (Format.scales == QuantScales::kScaleAndMin) second = hn::Neg(second);
  }
}

}  // namespace
}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
