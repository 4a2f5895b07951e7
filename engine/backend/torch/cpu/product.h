// Rows times a weight matrix on the CPU: the heart of decoding, where few rows meet many weights.
//
// Rows go in as they are, or as their norms: each thread prepares them for itself, which costs
// less than to get them from another processor's cache.
//
// Memory sets the speed here, so all rows of a batch meet a weight while it is in registers: six
// rows cost about what one costs. LibTorch's product (MKL) takes two to four times as long.
//
// Each number of the result is summed over the inputs in an order that depends on the number of
// inputs and the type of weights alone: one after the other, in stretches of fixed length whose
// sums are added in turn. How many rows and columns a tile has changes nothing in that. So a row
// has the same bits alone or among others, at any place and for any number of threads.
//
// Between processors bits may differ, for narrow weights mostly. Weights of bf16 meet activations
// rounded to bf16 where the processor multiplies and adds pairs of them (target AVX3_BF16; numbers
// below 2^-126 count as zero there), and fp32 ones elsewhere. Weights of int8 meet activations of 8
// bits where it does so with fours of bytes (AVX3_VNNI), and of 14 elsewhere. See RowType.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"

namespace tandem::cpu {

// y = x W^T + bias, stored in `out`, added to it or gated.
//
// activation: of the gate. x: what the weights' row_type() is made of, of weights.in() numbers;
// bias: [outs] or null; out: [rows, outs], or [rows, outs / 2] if gated. `first`: just the first so
// many columns, rounded up to a panel, and the others stay what they are; 0: all. Not of gated
// ones. Runs on the calling thread's team (parallel.h).
void product(float* out, const Rows<float>& x, const PackedMatrix& weights, const float* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             int64_t first = 0);
// For weights of type kDouble.
void product(float* out, const Rows<double>& x, const PackedMatrix& weights, const double* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             int64_t first = 0);
void product(double* out, const Rows<double>& x, const PackedMatrix& weights, const double* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             int64_t first = 0);

// The same of quantized weights, x of a multiple of 32 numbers. The bits are those of every other
// processor that adds and multiplies in one rounding.
void product(float* out, const Rows<float>& x, const QuantizedMatrix& weights, const float* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             int64_t first = 0);

}  // namespace tandem::cpu
