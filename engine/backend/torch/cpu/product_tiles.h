// The vectorized inner part of product.h, compiled once per target: tiles of rows x panels of
// columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cpu {

// What one tile keeps in registers on this target.
struct TileShape {
  int columns;         // per panel: two vectors of sums
  int inputs;          // interleaved inputs of a column
  int rows;            // maximum
  int panels_for_one;  // maximum panels per tile for a single row
};
TileShape tile_shape(WeightType type);

// Epilogue of a product y = x W^T + bias.
enum class Then : uint8_t {
  kStore,  // out = y
  kAdd,    // out += y
  kGate,   // out = act(first half of y) * second half of y; weights of Layout::kPairs
};

// Numbers that are added to some rows of sums before they are gated.
template <class A>
struct AddedRows {
  const A* sums = nullptr;       // [n, outs]
  const int32_t* row = nullptr;  // [rows] a row of `sums`; -1: none

  // [outs] for a row of the product; null: none
  const A* of(int64_t r, int64_t outs) const { return row[r] < 0 ? nullptr : sums + row[r] * outs; }
};

// Arguments of one product. A: float, or double for kDouble. O: float or double.
template <class O, class A>
struct TileTask {
  const PackedMatrix* weights;
  const PreparedRows* x;
  const A* bias;  // [outs] or null
  O* out;         // [rows, outs]; gated: [rows, outs / 2]
  Then then;
  Activation activation;      // for kGate
  const AddedRows<A>* added;  // for kGate; null: none
};

// Computes panels [first_panel, end_panel) for row groups [first_group, end_group).
void product_tiles(const TileTask<float, float>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);
void product_tiles(const TileTask<float, double>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);
void product_tiles(const TileTask<double, double>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);

}  // namespace tandem::cpu
