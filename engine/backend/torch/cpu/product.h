// Rows times a weight matrix on the CPU: the heart of decoding, where few rows meet many weights.
//
// Each number of the result is one dot product, summed in an order that depends on its length
// alone: 16 partial sums (8 in double), then pairwise. So a row has the same bits alone or among
// others, at any place, for any number of threads and on any processor. LibTorch's product takes
// another kernel for another number of rows, costs 2 to 4 rows' time for 4 rows, and gives none
// of this.
//
// Weights are read once for up to 64 rows. Memory sets the speed for few rows, arithmetic for many.
#pragma once

#include <cstdint>

namespace tandem::cpu {

// out[r, n] = x[r] . weight[n] + bias[n], or that is added to out[r, n] if `add`.
// x: [rows, in], weight: [outs, in], bias: [outs] or null, out: [rows, outs].
// T: float, double or c10::BFloat16; O: T, or T's type of arithmetic (float for bf16), or float.
// Runs on the calling thread's team (parallel.h).
template <class T, class O>
void product(O* out, const T* x, const T* weight, const T* bias, int64_t rows, int64_t outs,
             int64_t in, bool add);

}  // namespace tandem::cpu
