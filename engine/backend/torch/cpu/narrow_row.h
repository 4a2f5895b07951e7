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
inline constexpr int64_t kRowBlock = 128;
inline int64_t quantized_row_size(int64_t n) {
  return (n + 3) / 4 + 2 * ((n + kRowBlock - 1) / kRowBlock);
}
void quantize_row(int32_t* to, const float* from, int64_t n);

// to = from as bf16, to the nearest. to: n numbers, and a zero if n is odd.
void round_row(uint16_t* to, const float* from, int64_t n);

}  // namespace tandem::cpu
