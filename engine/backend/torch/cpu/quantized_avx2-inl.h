// Products of up to kMaxRows rows with a unit of quantized weights (quantized_matrix.h), for AVX2.
//
// VPMADDUBSW multiplies codes with activations and adds pairs in 16 bits. Sums stay in 16 bits
// while they fit; then VPMADDWD adds pairs in 32 bits. Inputs per 16-bit sum and column:
//
//   Q4_0 Q4_1 Q4_K Q5_0   32
//   Q5_1 Q5_K Q6_K        16
//   Q8_0                   4
//
// With Q4_0, Q5_0 and Q6_K the sum of (q - zero) x fits, but that of q x may not. The sum of q x is
// computed modulo 2^16, and the subtraction of zero * sum(x) then gives the exact result.
//
// The codes of 16 inputs and 16 columns are in registers, and the sums of all rows in the L1 cache,
// so that one broadcast of four activations serves 16 columns. With sums in registers, it would
// serve 8 columns, and a third of all instructions would be broadcasts.
#if defined(TANDEM_CPU_QUANTIZED_AVX2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_QUANTIZED_AVX2_INL_H_
#undef TANDEM_CPU_QUANTIZED_AVX2_INL_H_
#else
#define TANDEM_CPU_QUANTIZED_AVX2_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "engine/backend/torch/cpu/quantized_unit-inl.h"
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {
namespace {

// Rows per call. With more rows, unpacking the codes costs less per row.
constexpr int kMaxRows = 16;
static_assert(kSlices == 2);

// The activations of 32 inputs: [rows][kWords] words of quantize_groups().
struct GroupOfRows {
  static constexpr int64_t kWords = 12;
  const int32_t* x;

  HWY_INLINE __m256i word(int64_t row, int64_t i) const {
    return _mm256_set1_epi32(x[row * kWords + i]);
  }
  // The codes of 16 inputs, four per vector.
  HWY_INLINE void half(int64_t row, int half, __m256i to[4]) const {
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) to[i] = word(row, 4 * half + i);
  }
  // Sum of the codes of a half, in two 16-bit parts.
  HWY_INLINE __m256i sum(int64_t row, int half) const { return word(row, 8 + half); }
  HWY_INLINE FloatV scale(int64_t row) const { return hn::BitCast(Floats(), IntV{word(row, 10)}); }
  HWY_INLINE FloatV scaled_sum(int64_t row) const {
    return hn::BitCast(Floats(), IntV{word(row, 11)});
  }
};

// Totals, and sums of the first half of a group: in 16 bits, in 32 bits or, with Q6_K, scaled in
// fp32.
struct Work {
  float* totals;  // [rows][kColumns]
  HWY_ALIGN int32_t sums[kMaxRows][kUnit];

  float* total(int64_t row) const { return totals + row * kColumns; }
};

HWY_INLINE __m256i load_sums(const int32_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
HWY_INLINE void store_sums(__m256i v, int32_t* to) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), v);
}
HWY_INLINE __m256i add_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

// Whether a 16-bit sum holds 32 inputs.
constexpr bool sums_32(const QuantFormat& f) { return f.bits == 4 || (f.bits == 5 && f.zero != 0); }
constexpr int log2_of_zero(const QuantFormat& f) { return std::countr_zero(unsigned(f.zero)); }

// The codes of 16 inputs of a slice, four per vector.
template <int Bits>
HWY_INLINE void unpack_half(const uint8_t* codes, int half, __m256i to[4]) {
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    IntV low, high;
    unpack<Bits>(codes, i, low, high);
    to[i] = half == 0 ? low.raw : high.raw;
  }
}

// Sum over 16 inputs, modulo 2^16.
HWY_INLINE __m256i multiply_half(const __m256i codes[4], const __m256i x[4]) {
  const auto pairs = [&](int i) HWY_ATTR { return _mm256_maddubs_epi16(codes[i], x[i]); };
  return _mm256_add_epi16(_mm256_add_epi16(pairs(0), pairs(1)),
                          _mm256_add_epi16(pairs(2), pairs(3)));
}

// Adds the sums of a row and group to its totals.
template <QuantFormat Format>
class AddTotals {
 public:
  HWY_INLINE AddTotals(const GroupOfRows& x, int64_t row, const float (*scales)[kUnit],
                       float* totals)
      : scales_(scales), totals_(totals), dx_(x.scale(row)) {
    if constexpr (kLess) scaled_sum_ = x.scaled_sum(row);
    if constexpr (kZero) {
      const __m256i sum = _mm256_add_epi16(x.sum(row, 0), x.sum(row, 1));
      zero_ = _mm256_slli_epi16(sum, log2_of_zero(Format));
    }
  }

  HWY_INLINE void add(__m256i sum, int slice) const {
    const Floats d;
    const int at = slice * kLanes;
    if constexpr (kZero) sum = _mm256_sub_epi16(sum, zero_);
    if constexpr (sums_32(Format)) sum = add_pairs(sum);
    const FloatV scale = hn::Mul(hn::Load(d, scales_[0] + at), dx_);
    FloatV total = hn::Load(d, totals_ + at);
    total = hn::MulAdd(hn::ConvertTo(d, IntV{sum}), scale, total);
    if constexpr (kLess) total = hn::MulAdd(hn::Load(d, scales_[1] + at), scaled_sum_, total);
    hn::Store(total, d, totals_ + at);
  }

 private:
  static constexpr bool kLess = Format.scales != QuantScales::kScale;
  static constexpr bool kZero = sums_32(Format) && Format.zero != 0;
  const float (*scales_)[kUnit];
  float* totals_;
  FloatV dx_, scaled_sum_;
  __m256i zero_;
};

// multiply_*: adds the products of a group to the totals of all rows. The first half is stored, and
// the second one continues from there.
template <QuantFormat Format, int Half>
HWY_INLINE void multiply_unsigned(const uint8_t* codes, const GroupOfRows& x, int64_t rows,
                                  const float (*scales)[kUnit], Work& work) {
  __m256i c[2][4];
  unpack_half<Format.bits>(codes, Half, c[0]);
  unpack_half<Format.bits>(codes + 32, Half, c[1]);
  for (int64_t r = 0; r < rows; ++r) {
    __m256i four[4], sum[2];
    x.half(r, Half, four);
    HWY_UNROLL(2)
    for (int s = 0; s < 2; ++s) {
      int32_t* const at = work.sums[r] + s * kLanes;
      sum[s] = multiply_half(c[s], four);
      if constexpr (sums_32(Format)) {
        if (Half == 1) sum[s] = _mm256_add_epi16(sum[s], load_sums(at));
      } else {
        sum[s] = add_pairs(sum[s]);
        if (Half == 1) sum[s] = _mm256_add_epi32(sum[s], load_sums(at));
      }
      if (Half == 0) store_sums(sum[s], at);
    }
    if (Half == 0) continue;
    const AddTotals<Format> totals(x, r, scales, work.total(r));
    totals.add(sum[0], 0);
    totals.add(sum[1], 1);
  }
}

// Q8_0: of codes less 128.
template <QuantFormat Format, int Half>
HWY_INLINE void multiply_signed(const uint8_t* codes, const GroupOfRows& x, int64_t rows,
                                const float (*scales)[kUnit], Work& work) {
  for (int s = 0; s < 2; ++s) {
    __m256i c[4], size[4];
    unpack_half<8>(codes + s * 32, Half, c);
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      c[i] = _mm256_xor_si256(c[i], _mm256_set1_epi8(-128));
      size[i] = _mm256_abs_epi8(c[i]);
    }
    for (int64_t r = 0; r < rows; ++r) {
      __m256i four[4];
      x.half(r, Half, four);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        four[i] = add_pairs(_mm256_maddubs_epi16(size[i], _mm256_sign_epi8(four[i], c[i])));
      }
      int32_t* const at = work.sums[r] + s * kLanes;
      const __m256i sum =
          _mm256_add_epi32(_mm256_add_epi32(four[0], four[1]), _mm256_add_epi32(four[2], four[3]));
      if (Half == 0) {
        store_sums(sum, at);
      } else {
        AddTotals<Format>(x, r, scales, work.total(r)).add(_mm256_add_epi32(sum, load_sums(at)), s);
      }
    }
  }
}

// Q6_K: each half has its own scale.
template <QuantFormat Format, int Half>
HWY_INLINE void multiply_sixteens(const uint8_t* codes, const GroupOfRows& x, int64_t rows,
                                  const float (*scales)[kUnit], Work& work) {
  const Floats d;
  __m256i c[2][4];
  unpack_half<Format.bits>(codes, Half, c[0]);
  unpack_half<Format.bits>(codes + 32, Half, c[1]);
  for (int64_t r = 0; r < rows; ++r) {
    __m256i four[4];
    x.half(r, Half, four);
    const __m256i zero = _mm256_slli_epi16(x.sum(r, Half), log2_of_zero(Format));
    HWY_UNROLL(2)
    for (int s = 0; s < 2; ++s) {
      const __m256i sum = add_pairs(_mm256_sub_epi16(multiply_half(c[s], four), zero));
      const FloatV v = hn::ConvertTo(d, IntV{sum});
      const FloatV scale = hn::Load(d, scales[Half] + s * kLanes);
      float* const first = reinterpret_cast<float*>(work.sums[r]) + s * kLanes;
      if (Half == 0) {
        hn::Store(hn::Mul(v, scale), d, first);
      } else {
        const FloatV u = hn::MulAdd(v, scale, hn::Load(d, first));
        float* const total = work.total(r) + s * kLanes;
        hn::Store(hn::MulAdd(u, x.scale(r), hn::Load(d, total)), d, total);
      }
    }
  }
}

template <QuantFormat Format, int Half>
HWY_INLINE void multiply_group(const uint8_t* codes, const GroupOfRows& x, int64_t rows,
                               const float (*scales)[kUnit], Work& work) {
  if constexpr (Format.scales == QuantScales::kSixteens) {
    multiply_sixteens<Format, Half>(codes, x, rows, scales, work);
  } else if constexpr (Format.bits == 8) {
    multiply_signed<Format, Half>(codes, x, rows, scales, work);
  } else {
    multiply_unsigned<Format, Half>(codes, x, rows, scales, work);
  }
}

template <QuantType Type>
HWY_INLINE void multiply_rows(const Tile& tile, int64_t rows) {
  constexpr QuantFormat kFormat = quant_format(Type);
  Work work;
  work.totals = tile.totals;
  GroupOfRows x{tile.x};
  const uint8_t* codes = tile.codes;
  const uint8_t* ahead = tile.ahead;
  HWY_ALIGN float converted[2][kUnit];
  for (int64_t g = 0; g < tile.groups; ++g) {
    const float(*scales)[kUnit] = converted;
    if constexpr (decodes_scales(kFormat)) {
      scales = tile.decoded->of[g];
    } else {
      HWY_UNROLL(2)
      for (int s = 0; s < 2; ++s) {
        FloatV first, second;
        scales_of<kFormat>(tile, g, s, first, second);
        hn::Store(first, Floats(), converted[0] + s * kLanes);
        if constexpr (kFormat.scales == QuantScales::kScaleAndMin) {
          hn::Store(second, Floats(), converted[1] + s * kLanes);
        }
      }
    }
    prefetch_weights<kFormat>(tile, codes, ahead);
    ahead += tile.ahead_step;
    multiply_group<kFormat, 0>(codes, x, rows, scales, work);
    HWY_FENCE;  // loading the codes again is faster than keeping them on the stack
    multiply_group<kFormat, 1>(codes, x, rows, scales, work);
    codes += QuantizedMatrix::code_bytes(kFormat);
    x.x += rows * GroupOfRows::kWords;
  }
}

}  // namespace
}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
