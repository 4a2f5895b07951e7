// Conversion of activation rows to the narrow types that int8 and bf16 weights are multiplied with.
// The implementation is compiled once per target. Each output depends on its row only.
#pragma once

#include <cstdint>

namespace tandem::cpu {

// to = round(from / scale). Returns the scale, max |from| / 8191. If an element is not finite, the
// scale is NaN and `to` is zero. If max |from| < 2^-100, `to` is zero. to: n elements, plus a zero
// if n is odd.
float quantize_row(int16_t* to, const float* from, int64_t n);

// Quantizes to int8 in blocks of kRowBlock elements (the last may be shorter), with a scale of max
// |block| / 127 each. to, per block, in 32-bit words: -128 * sum(codes); the codes, four per word,
// padded with zeros; the bits of the scale.
//
// Activations of real models have large outliers. With blocks of 128, the output distributions of
// SmolLM2 and Qwen2.5 deviate from fp32 three times as much as with 32.
inline constexpr int64_t kRowBlock = 32;
inline int64_t quantized_row_size(int64_t n) {
  return (n + 3) / 4 + 2 * ((n + kRowBlock - 1) / kRowBlock);
}
void quantize_row(int32_t* to, const float* from, int64_t n);

// Quantizes to int8 in groups of 32 elements, for quantized weights. to, per group, in 32-bit
// words:
//
//   codes        with products of bytes (multiplies_fours()): 8 words of 4 bytes; otherwise 16
//                words, two per four elements: elements 0 and 2, then 1 and 3, 16 bits each
//   sums         with AVX2 2 words, of the first and of the last 16 codes, in 16-bit halves: of
//                elements 0 and 1, and of elements 2 and 3 of each four; otherwise 3 words: -32
//                times the sum of the first 16, of the last 16, and -16 times the sum of all
//   scale        1 word: bits of the fp32 scale
//   scale * sum  1 word: bits of the fp32 product of the scale and both sums
int quantized_words();  // words per group: 12, 13 or 21
void quantize_groups(int32_t* to, const float* from, int64_t n);

// to = from as bf16, rounded to nearest. to: n elements, plus a zero if n is odd.
void round_row(uint16_t* to, const float* from, int64_t n);

}  // namespace tandem::cpu
