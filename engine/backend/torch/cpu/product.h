// Products of a few rows with a weight matrix on the CPU, which dominate decoding time.
//
// Decoding is limited by memory bandwidth, so all rows of a batch use a weight while it is in
// registers: six rows take about as long as one. LibTorch's product (MKL) takes two to four times
// as long. Each thread normalizes and rounds the input rows itself: that is faster than fetching
// them from another processor's cache.
//
// Batch invariance: each element of the result is summed over the inputs in an order that depends
// only on the number of inputs and the weight type. Inputs are added one after the other, in
// stretches of fixed length whose sums are added in order. Tile sizes do not affect this order. A
// row therefore has the same bits in any batch, at any index and for any thread count.
//
// Bits may differ between processors, mostly for narrow weights (see RowType). With bf16 dot
// products (AVX3_BF16), bf16 weights are multiplied with activations rounded to bf16, and numbers
// below 2^-126 count as zero; otherwise with fp32 activations. Int8 weights are multiplied with
// 8-bit activations if the processor has byte dot products (AVX3_VNNI), otherwise with 14-bit ones.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/columns.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"

namespace tandem::cpu {

// y = x W^T + bias, stored in `out`, added to it, or gated (Then).
//
// x.in = weights.in(). bias: [outs] or null. out: [rows, outs], or [rows, outs / 2] if gated.
// activation: for kGate. columns: those to compute, in whole panels; not with kGate. Other elements
// may be computed, too. added: with kGate, added to the sums before the gate; null: nothing is.
// Runs on the calling thread's team (parallel.h).
void product(float* out, const Rows<float>& x, const PackedMatrix& weights, const float* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             const Columns& columns = {}, const AddedRows<float>* added = nullptr);
// For weights of type kDouble.
void product(float* out, const Rows<double>& x, const PackedMatrix& weights, const double* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             const Columns& columns = {}, const AddedRows<double>* added = nullptr);
void product(double* out, const Rows<double>& x, const PackedMatrix& weights, const double* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             const Columns& columns = {}, const AddedRows<double>* added = nullptr);

// Product with quantized weights. REQUIRES: x.in is a multiple of 32. The result has the same bits
// on all processors with fused multiply-add.
void product(float* out, const Rows<float>& x, const QuantizedMatrix& weights, const float* bias,
             Then then = Then::kStore, Activation activation = Activation::kSilu,
             const Columns& columns = {}, const AddedRows<float>* added = nullptr);

}  // namespace tandem::cpu
