// Attention over pages on the CPU.
//
// All rows of a sequence and all query heads of a group go over the same keys and values, read in
// place. Keys are numbered by where they stand in the row's context: 0 is the context's first, and
// a row of a tree sees its ancestors in order of depth, wherever they lie. Context is cut after
// every kSplitKeys keys. Each split has a softmax of its own, and splits are merged in ascending
// order: the online softmax of Milakov and Gimelshein (arXiv:1805.02867), with the fixed blocks of
// flash decoding.
//
// So what a row gets depends on its query and the keys that it sees, and on nothing else: not on
// the rows beside it, on pages, on chunks of a prefill, on a branch or a chain, or on the number
// of threads; and not on the processor either, since no sum is ordered by the width of a vector.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/kv.h"
#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cpu {

inline constexpr int kSplitKeys = 256;

// Added to scores by distance (T5, section 2.1 of arXiv:1910.10683, once per distance instead of
// once per bucket): head h and a key that stands d after the row's position (mostly d <= 0) get
// table[h, before + clamp(d, -before, after)].
template <class A>
struct DistanceBias {
  const A* table = nullptr;  // [heads, before + 1 + after]; null: none
  int before = 0;
  int after = 0;
};

// Where rows of queries come from and where results go. X: float, double or BFloat16.
template <class X>
struct AttentionIo {
  const X* q = nullptr;  // [rows, heads * head_dim], rotated; rows are q_stride apart
  int64_t q_stride = 0;
  X* out = nullptr;  // [rows, heads * head_dim]
  int heads = 0;     // a multiple of kv_heads; heads of a group are neighbours
};

// out[r] = softmax(scale * q[r] . key + bias) values, over the keys that row r sees, of which there
// is one at least. `rows` may be of another cache than the rows' own (cross-attention): then all of
// it is dense. Of a row's extra keys the last stands at its position, so those before the row's
// position by one, two, ... are extra or dense.
//
// Runs on the calling thread's team (parallel.h). Instances: X and K both double, or each of float
// and BFloat16; sums in A.
template <class X, class K, class A = Accumulated<X>>
void attention(const AttentionIo<X>& io, const RowView& rows, const PagedKv<const K>& kv,
               double scale, const DistanceBias<A>& bias = {});

}  // namespace tandem::cpu
