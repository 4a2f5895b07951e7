// Products of many rows with a panel of quantized weights (quantized_matrix.h), for AVX-512 with
// VNNI.
//
// The codes of 32 inputs and 32 columns are in 16 registers while all rows are multiplied, so that
// one broadcast of four activations serves 32 columns. The totals of the rows are in the L1 cache.
#if defined(TANDEM_CPU_QUANTIZED_VNNI_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_QUANTIZED_VNNI_INL_H_
#undef TANDEM_CPU_QUANTIZED_VNNI_INL_H_
#else
#define TANDEM_CPU_QUANTIZED_VNNI_INL_H_
#endif

#include "engine/backend/torch/cpu/quantized_unit-inl.h"
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {
namespace {

static_assert(kSlices == 1);

// Highway has no target with VPDPBUSD (u8 x s8 dot products of four, added to int32). Functions
// with these attributes are not HWY_INLINE, which would require callers with the same attribute.
#define TANDEM_VNNI __attribute__((target(HWY_TARGET_STR ",avx512vnni")))
#define TANDEM_GFNI __attribute__((target(HWY_TARGET_STR ",avx512vnni,gfni")))

struct Vnni {
  static constexpr int kWords = 1;
  TANDEM_VNNI static inline IntV add(IntV sum, IntV codes, IntV x) {
    return IntV{_mm512_dpbusd_epi32(sum.raw, codes.raw, x.raw)};
  }
  TANDEM_VNNI static inline IntV add(IntV sum, IntV codes, const int32_t* x, int /*stride*/) {
    return IntV{_mm512_dpbusd_epi32(sum.raw, codes.raw, _mm512_set1_epi32(*x))};
  }
  template <int Bits>
  HWY_INLINE static void codes(const uint8_t* at, int i, IntV& low, IntV& high) {
    unpack<Bits>(at, i, low, high);
  }
};

// With GFNI, one instruction moves any bits of a byte.
struct Gfni : Vnni {
  template <int Bits>
  TANDEM_GFNI static inline void codes(const uint8_t* at, int i, IntV& low, IntV& high) {
    if constexpr (Bits == 8) return unpack<Bits>(at, i, low, high);
    const IntV both = load_bytes(at + 64 * i);
    low = hn::And(both, all_bytes(15));
    high = moved(both, 4, 0, 4);
    if constexpr (Bits == 5) {
      const IntV fifths = load_bytes(at + 256);
      low = hn::Or(low, moved(fifths, i, 4, 1));
      high = hn::Or(high, moved(fifths, 4 + i, 4, 1));
    } else if constexpr (Bits == 6) {
      low = hn::Or(low, moved(load_bytes(at + 256), 2 * i, 4, 2));
      high = hn::Or(high, moved(load_bytes(at + 320), 2 * i, 4, 2));
    }
  }

 private:
  // Moves `count` bits of each byte from bit `from` to bit `to`. The other bits are zero. The
  // numbers are known after unrolling.
  TANDEM_GFNI static inline IntV moved(IntV v, int from, int to, int count) {
    uint64_t matrix = 0;  // byte 7 - i: a mask of the bit that becomes bit i
    for (int k = 0; k < count; ++k) matrix |= uint64_t{1} << (from + k) << 8 * (7 - to - k);
    return IntV{
        _mm512_gf2p8affine_epi64_epi8(v.raw, _mm512_set1_epi64(static_cast<int64_t>(matrix)), 0)};
  }
};

// The activations of a row and 32 inputs: the words of quantize_groups(), `stride` apart.
struct GroupOfRow {
  static constexpr int64_t kWords = 13;
  const int32_t* x;
  int64_t stride;

  HWY_INLINE IntV word(int i) const { return hn::Set(Ints(), x[i * stride]); }
  // -zero * sum of the codes of a half. Except with Q6_K, that of both is added to the first half.
  template <QuantFormat Format>
  HWY_INLINE IntV less_zero(int half) const {
    if constexpr (Format.scales == QuantScales::kSixteens) {
      static_assert(Format.zero == 32);
      return word(8 + half);
    } else if (half == 1) {
      return hn::Zero(Ints());
    } else if constexpr (Format.zero == 128) {
      return hn::ShiftLeft<3>(word(10));
    } else if constexpr (Format.zero == 16) {
      return word(10);
    } else if constexpr (Format.zero == 8) {
      return hn::ShiftRight<1>(word(10));
    } else {
      static_assert(Format.zero == 0);
      return hn::Zero(Ints());
    }
  }
  HWY_INLINE FloatV scale() const { return hn::BitCast(Floats(), word(11)); }
  HWY_INLINE FloatV scaled_sum() const { return hn::BitCast(Floats(), word(12)); }
};

// A group of inputs of a panel, decoded.
struct PanelGroup {
  IntV codes[2][8];            // [unit][four inputs]
  FloatV first[2], second[2];  // scales_of()
};

// Adds the products of a group of inputs and a row to the row's totals of a panel.
template <QuantFormat Format, class Dot>
HWY_INLINE void add_row(const PanelGroup& w, const GroupOfRow& x, float* totals) {
  constexpr bool kSixteens = Format.scales == QuantScales::kSixteens;
  constexpr bool kLess =
      Format.scales == QuantScales::kScaleAndMin || Format.scales == QuantScales::kTwoLevels;
  const Floats d;
  // Of two halves: shorter dependency chains occupy fewer entries of the processor's schedulers.
  IntV sum[2][2];
  HWY_UNROLL(2)
  for (int half = 0; half < 2; ++half) {
    sum[0][half] = sum[1][half] = x.less_zero<Format>(half);
  }
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    const IntV four = x.word(i);
    HWY_UNROLL(2)
    for (int u = 0; u < 2; ++u) {
      sum[u][i / 4] = Dot::add(sum[u][i / 4], w.codes[u][i], four);
    }
  }
  const FloatV dx = x.scale();
  HWY_UNROLL(2)
  for (int u = 0; u < 2; ++u) {
    FloatV total = hn::Load(d, totals + u * kUnit);
    if constexpr (kSixteens) {
      const FloatV first = hn::Mul(hn::ConvertTo(d, sum[u][0]), w.first[u]);
      const FloatV both = hn::MulAdd(hn::ConvertTo(d, sum[u][1]), w.second[u], first);
      total = hn::MulAdd(both, dx, total);
    } else {
      const FloatV both = hn::ConvertTo(d, hn::Add(sum[u][0], sum[u][1]));
      total = hn::MulAdd(both, hn::Mul(w.first[u], dx), total);
    }
    if constexpr (kLess) total = hn::MulAdd(w.second[u], x.scaled_sum(), total);
    hn::Store(total, d, totals + u * kUnit);
  }
}

// Multiplies both units of a panel with n groups of rows. tiles: [n][unit]. Inlined into
// multiply_both_vnni() and multiply_both_gfni(), to be compiled with their target attributes.
template <QuantType Type, class Dot>
HWY_INLINE void multiply_both(const Tile (*tiles)[2], int64_t n) {
  constexpr QuantFormat kFormat = quant_format(Type);
  for (int64_t g = 0; g < tiles[0][0].groups; ++g) {
    PanelGroup w;
    HWY_UNROLL(2)
    for (int u = 0; u < 2; ++u) {
      const Tile& tile = tiles[0][u];
      const uint8_t* codes = tile.codes + g * QuantizedMatrix::code_bytes(kFormat);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        Dot::template codes<kFormat.bits>(codes, i, w.codes[u][i], w.codes[u][4 + i]);
      }
      scales_of<kFormat>(tile, g, 0, w.first[u], w.second[u]);
    }
    for (int64_t i = 0; i < n; ++i) {
      for (const Tile& tile : tiles[i]) {
        const uint8_t* ahead = tile.ahead + g * tile.ahead_step;
        if (ahead >= tile.skip_from) ahead += tile.skip;
        prefetch_weights<kFormat>(tile, tile.codes, ahead);
      }
      const int64_t rows = tiles[i][0].rows;
      GroupOfRow x{tiles[i][0].x + g * GroupOfRow::kWords * rows, rows};
      const int32_t* const next = x.x + GroupOfRow::kWords * rows;
      for (int64_t at = 0; at < GroupOfRow::kWords * rows; at += 16) hwy::Prefetch(next + at);
      float* totals = tiles[i][0].totals;
      for (int64_t r = 0; r < rows; ++r, ++x.x, totals += kColumns) {
        add_row<kFormat, Dot>(w, x, totals);
      }
    }
  }
}

template <QuantType Type>
TANDEM_VNNI HWY_NOINLINE void multiply_both_vnni(const Tile (*tiles)[2], int64_t n) {
  multiply_both<Type, Vnni>(tiles, n);
}
template <QuantType Type>
TANDEM_GFNI HWY_NOINLINE void multiply_both_gfni(const Tile (*tiles)[2], int64_t n) {
  multiply_both<Type, Gfni>(tiles, n);
}

}  // namespace
}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
