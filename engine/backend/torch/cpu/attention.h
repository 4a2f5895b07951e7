// Paged attention on the CPU.
//
// All rows of a sequence and all query heads of a group share each read of the keys and values,
// which are read in place. Keys are numbered by position in the row's context, from 0. A row of a
// tree sees its ancestors in order of depth, wherever they are stored. The context is split every
// kSplitKeys keys. Each split has its own softmax, and splits are merged in ascending order: the
// online softmax of Milakov and Gimelshein (arXiv:1805.02867) with the fixed blocks of flash
// decoding.
//
// A row's result therefore depends only on its query and its visible keys. It is bit-identical for
// any batch, page layout, prefill chunking, tree or chain, and thread count. It is also the same on
// every processor, because no sum is ordered by the vector width.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/kv.h"
#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cpu {

inline constexpr int kSplitKeys = 256;

// Bias added to scores by key distance (T5, section 2.1 of arXiv:1910.10683), expanded from one
// entry per bucket to one per distance. For head h and a key d positions after the row (usually d
// <= 0), the bias is table[h, before + clamp(d, -before, after)].
template <class A>
struct DistanceBias {
  const A* table = nullptr;  // [heads, before + 1 + after]; null: no bias
  int before = 0;
  int after = 0;
};

// Inputs and outputs of attention(). X: float, double or BFloat16.
template <class X>
struct AttentionIo {
  const X* q = nullptr;  // [rows, heads * head_dim], rotated; rows are q_stride apart
  int64_t q_stride = 0;
  X* out = nullptr;  // [rows, heads * head_dim]
  int heads = 0;     // a multiple of kv_heads; heads of a group are adjacent
};

// out[r] = softmax(scale * q[r] . keys + bias) . values, over the keys visible to row r.
//
// REQUIRES: every row sees at least one key. `rows` may refer to another sequence's cache
// (cross-attention); then all visible keys are dense. A row's last extra key is at the row's
// position, so the keys 1, 2, ... positions earlier are extra or dense.
//
// Runs on the calling thread's team (parallel.h). Instantiated for X = K = double and for X and K
// each float or BFloat16. Sums are computed in A.
template <class X, class K, class A = Accumulated<X>>
void attention(const AttentionIo<X>& io, const RowView& rows, const PagedKv<const K>& kv,
               double scale, const DistanceBias<A>& bias = {});

}  // namespace tandem::cpu
