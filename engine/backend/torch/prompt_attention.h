// Attention of long chunks of prompts by a library, whose kernels read keys and values without
// pages. All other rows keep the platform's own attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/row_view.h"

namespace tandem {

// Chunks of more rows than this are long. The bits of few rows must not depend on their number.
inline constexpr int kMostShortRows = kMostPackedRows;

// The most bytes of keys and values that are gathered at a time, unless one head has more.
inline constexpr int64_t kMostGatheredBytes = int64_t{256} << 20;

// RowView::pieces of these rows; empty: no long chunk. A chunk is a chain without a tree's rows,
// masks or keys that the plan's window cuts off.
std::vector<RowPiece> pieces_of(const RowColumns& columns);

// Bytes of the scratch that a sequence of `keys` rows takes. element: bytes of a number
int64_t gathered_bytes(int kv_heads, int head_dim, int64_t keys, int64_t element);

struct PromptAttention {
  // Copies the cache rows [0, keys) of the sequence of row `row`, of the kv heads [first_head,
  // first_head + heads). to: [2, heads, keys, head_dim], keys before values
  void (*gather)(at::Tensor& to, const RowView& rows, int row, const LayerKv& kv, int first_head);
  // Query i sees the keys [0, n) with n = keys - rows + i + 1; with a window, the last `window` of
  // them (0: all). out, q: [rows, heads, head_dim]; keys, values: [kv_heads, keys, head_dim]
  void (*attend)(at::Tensor& out, const at::Tensor& q, const at::Tensor& keys,
                 const at::Tensor& values, double scale, int window);
  // Rows between chunks: as Ops::attention.
  void (*others)(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
                 double scale, const DistanceBias& bias);
};

// As Ops::attention, without a distance bias. Kv heads are gathered in groups of at most
// `most_bytes`. REQUIRES: rows.pieces is not null
void attend_pieces(const PromptAttention& by, at::Tensor& out, const at::Tensor& qkv,
                   const RowView& rows, const LayerKv& kv, double scale,
                   int64_t most_bytes = kMostGatheredBytes);

}  // namespace tandem
