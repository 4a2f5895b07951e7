// The vectorized inner part of products with quantized weights, compiled once per target.
//
// Activations are int8 with a scale dx per group of 32 inputs. The products of a group are summed
// exactly as integers. Group sums are accumulated in fp32, in the order of the groups, as follows
// on every processor:
//
//   total = fma(sum(q x) - zero sum(x), scale * dx, total)
//   total = fma(-less, dx sum(x), total)                      with a minimum
//   Q6_K: u = sum16(q x) s; u = fma(other sum16(q x), other s, u); total = fma(u, dx, total)
//
// A row thus has the same bits on every processor and in any batch.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/cpu/read_ahead.h"

namespace tandem::cpu {

struct QuantTask {
  const QuantizedMatrix* weights;
  const PreparedRows* x;  // of RowType::kInt8x32
  const float* bias;      // [outs] or null
  float* out;             // [rows, outs]; gated: [rows, outs / 2]
  Then then;
  Activation activation;             // for kGate
  const AddedRows<float>* added;     // for kGate; null: none
  const ReadAhead* later = nullptr;  // to prefetch; null: nothing
};

// Computes panels [first_panel, end_panel) for row groups [first_group, end_group).
void product_tiles(const QuantTask& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);

// Maximum rows per kernel call on this target.
int quantized_rows();
// Words of one row that are adjacent in a group of PreparedRows: all of 32 inputs (AVX2), or one.
int adjacent_words();

}  // namespace tandem::cpu
