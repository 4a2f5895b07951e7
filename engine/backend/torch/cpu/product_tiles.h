// What of product.h is compiled once per processor: tiles of rows times panels of columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cpu {

// What one tile keeps in registers on this processor.
struct TileShape {
  int columns;         // of a panel: two vectors of sums
  int inputs;          // of a column that stand together
  int rows;            // at most
  int panels_for_one;  // panels that a single row takes at once, at most
};
TileShape tile_shape(WeightType type);

// What becomes of a product y = x W^T + bias.
enum class Then : uint8_t {
  kStore,  // out = y
  kAdd,    // out += y
  kGate,   // out = act(first half of y) * second half of y, for weights of Layout::kPairs
};

// One product, as far as tiles must know it. A: float, or double for kDouble. O: float or double.
template <class O, class A>
struct TileTask {
  const PackedMatrix* weights;
  const PreparedRows* x;
  const A* bias;  // [outs] or null
  O* out;         // [rows, outs], or half of that if gated
  Then then;
  Activation activation;  // of the gate
};

// Panels [first_panel, end_panel) of groups [first_group, end_group) of rows.
void product_tiles(const TileTask<float, float>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);
void product_tiles(const TileTask<float, double>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);
void product_tiles(const TileTask<double, double>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group);

}  // namespace tandem::cpu
