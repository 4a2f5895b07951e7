// Products of rows with quantized weights: what of product.h is compiled once per processor.
//
// Activations are 8-bit numbers with a scale for each 32 inputs. The products of a group of inputs
// are summed exactly, as integers; the groups' sums as fp32 in one order, whatever the processor:
//
//   total = fma(sum(q x) - zero sum(x), scale * dx, total); total = fma(-less, dx sum(x), total)
//   of Q6_K  u = sum16(q x) s; u = fma(other sum16(q x), other s, u); total = fma(u, dx, total)
//
// for groups in order. So a row has the same bits on every processor, alone or among others.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"

namespace tandem::cpu {

struct QuantTask {
  const QuantizedMatrix* weights;
  const PreparedRows* x;  // of RowType::kInt8x32
  const float* bias;      // [outs] or null
  float* out;             // [rows, outs], or half of that if gated
  Then then;
  Activation activation;  // of the gate
};

// Panels [first_panel, end_panel) of groups [first_group, end_group) of rows.
void product_tiles(const QuantTask& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);

// Rows that a kernel takes at once on this processor, at most.
int quantized_rows();

}  // namespace tandem::cpu
