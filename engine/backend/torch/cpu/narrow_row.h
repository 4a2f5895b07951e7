// A row of activations in the narrow types that weights of int8 and bf16 meet: what of
// prepared_rows.h is compiled once per processor. Each number of the result depends on its row
// alone.
#pragma once

#include <cstdint>

namespace tandem::cpu {

// to = from / scale, to the nearest; returns the scale: the greatest magnitude / 8191. NaN, and
// zeros, if a number is not finite; zeros if all are below 2^-100. to: n numbers, and a zero if n
// is odd.
float quantize_row(int16_t* to, const float* from, int64_t n);

// The same in blocks of kRowBlock numbers (the last may have fewer), each in steps of its own
// greatest magnitude / 127. to: for each block -128 times the sum of its int8 numbers, these
// numbers, four together and zeros up to a multiple of four, and the bits of its scale.
//
// Real models have activations of much greater magnitude than their neighbours: with blocks of 128
// the distributions of SmolLM2 and Qwen2.5 move away from fp32 three times as far as with 32.
inline constexpr int64_t kRowBlock = 32;
inline int64_t quantized_row_size(int64_t n) {
  return (n + 3) / 4 + 2 * ((n + kRowBlock - 1) / kRowBlock);
}
void quantize_row(int32_t* to, const float* from, int64_t n);

// The same in groups of 32 numbers for quantized weights, in words of 32 bits. to: for each group
// the numbers, four bytes a word where the processor multiplies such fours; else in two words the
// first and third and the second and fourth, 16 bits each. Then the sums of the first and of the
// last 16 numbers; the bits of the scale; and those of the scale times both sums.
int quantized_words();  // of a group: 12, or 20
void quantize_groups(int32_t* to, const float* from, int64_t n);

// to = from as bf16, to the nearest. to: n numbers, and a zero if n is odd.
void round_row(uint16_t* to, const float* from, int64_t n);

}  // namespace tandem::cpu
