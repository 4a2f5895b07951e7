// Paged attention: split-KV ("flash decoding"). CUDA counterpart of cpu/attention.h.
//
// Keys are numbered as there and split every kSplitKeys. A thread block processes one kv head, one
// split and several consecutive rows with all query heads of the group, so their common keys are
// read once. Each split has its own softmax (arXiv:1805.02867), and splits are merged in ascending
// order. The assignment of keys to threads depends only on key numbers, so a row has the same bits
// in any batch, page layout, prefill chunking, tree or chain.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cuda {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kSplitKeys = 256;  // as cpu::kSplitKeys
inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarp;

// Maximum queries per thread block. Queries and their scores are in shared memory.
template <class A>
inline constexpr int kMaxQueries = sizeof(A) == 8 ? 4 : 16;

// Keys visible to a row, by number. Keys [first, dense) are dense: the number is the cache row.
// Keys [others, end) are extra: RowView::extra[`extra`] onwards. Same as RowView::first_dense(),
// first_extra() and last_key().
struct VisibleKeys {
  int first, dense;
  int others, end;
  int extra;
  int position;
  int table;  // offset into RowView::pages

  __device__ bool has(int key) const {
    return (key >= first && key < dense) || (key >= others && key < end);
  }
};

inline __device__ VisibleKeys visible_keys(const RowView& rows, int64_t r) {
  const bool cut = rows.window > 0 && !mutated(Mutant::kNoWindow);
  const int prompts = rows.prompts == nullptr ? 0 : rows.prompts[r];
  const int kept = mutated(Mutant::kPromptsCut) ? rows.window : prompts + rows.window;
  VisibleKeys keys;
  keys.dense = rows.dense_end[r] + (mutated(Mutant::kSeeNext) ? 1 : 0);
  const int oldest = rows.position[r] + 1 - rows.window;
  keys.first = cut ? min(keys.dense, max(rows.first_key[r], oldest)) : rows.first_key[r];
  keys.extra = cut ? max(rows.extra_begin[r], rows.extra_end[r] - kept) : rows.extra_begin[r];
  keys.position = rows.position[r];
  const int extras = mutated(Mutant::kNoExtra) ? 0 : rows.extra_end[r] - keys.extra;
  keys.end = extras > 0 ? keys.position + prompts + 1 : keys.dense;
  keys.others = keys.end - extras;
  keys.table = mutated(Mutant::kFirstTable) ? 0 : rows.table[r];
  return keys;
}

// Partition of the work into thread blocks.
struct AttentionGrid {
  int splits = 1;       // up to the last key of any row
  int block_rows = 1;   // rows per thread block
  int block_heads = 1;  // query heads per thread block, of one group
  int head_parts = 1;   // thread blocks per group

  static AttentionGrid of(const RowView& rows, int group, int most_queries) {
    AttentionGrid g;
    g.splits = (rows.most_keys + kSplitKeys - 1) / kSplitKeys;
    g.head_parts = (group + most_queries - 1) / most_queries;
    g.block_heads = (group + g.head_parts - 1) / g.head_parts;
    const int room = most_queries / g.block_heads;
    g.block_rows = rows.together < 1 ? 1 : rows.together < room ? rows.together : room;
    return g;
  }
};

// Partial results of splits, merged if there are several.
template <class A>
struct AttentionParts {
  Ptr<A> sums = nullptr;    // [rows, heads, splits, head_dim]: weighted sums of values
  Ptr<A> tops = nullptr;    // [rows, heads, splits]: maximum score
  Ptr<A> totals = nullptr;  // [rows, heads, splits]: sum of weights; 0: no visible key
};

// Bias added to scores by distance, as cpu::DistanceBias.
template <class A>
struct ScoresByDistance {
  Ptr<const A> table = nullptr;  // [heads, before + 1 + after]; null: no bias
  int before = 0;
  int after = 0;
};

// Arguments of one layer's launch.
template <class T>
struct AttentionArguments {
  Ptr<T> out = nullptr;        // [rows, heads * head_dim]
  Ptr<const T> qkv = nullptr;  // [rows, q_stride], queries first
  int64_t q_stride = 0;        // elements per row of qkv
  RowView rows;
  PagedHeads<const T> kv;
  Residual<T> scale = 1;
  ScoresByDistance<Residual<T>> bias;
  AttentionGrid grid;
  AttentionParts<Residual<T>> parts;
};

// The work of one thread block. Data is read in words of type Word: 16 bytes, or single elements if
// head_dim is not a multiple of 16 bytes.
template <class T, class Word>
class AttentionBlock {
 public:
  using A = Residual<T>;
  static constexpr int kQueries = kMaxQueries<A>;
  static constexpr int kN = sizeof(Word) / sizeof(T);  // elements per word
  static constexpr int kKeyLanes = 8;                  // threads per key's score
  static constexpr int kValueLanes = 16;               // threads per value
  static constexpr int kPass = 4;                      // queries that share a pass over the values
  static constexpr int kPassNumbers = kPass * kValueLanes * kN;

  struct Shared {
    SharedArray<VisibleKeys, kQueries> visible;  // per row
    SharedArray<A, kQueries * kMaxHeadDim> q;
    SharedArray<A, kQueries * kSplitKeys> weights;  // scores, then weights
    SharedArray<A, kQueries> tops, totals;
    SharedArray<A, kAttentionWarps * kPassNumbers> sums;  // per warp
  };

  __device__ AttentionBlock(const AttentionArguments<T>& a, Shared& shared) : a_(a), s_(shared) {
    const int group = a.kv.heads / a.kv.kv_heads;
    first_row_ = blockIdx.x * a.grid.block_rows;
    rows_ = min(a.grid.block_rows, a.rows.rows - first_row_);
    const int part = blockIdx.y % a.grid.head_parts * a.grid.block_heads;
    kv_head_ = blockIdx.y / a.grid.head_parts;
    heads_ = min(a.grid.block_heads, group - part);
    first_head_ = kv_head_ * group + part;
    queries_ = rows_ * heads_;
    base_ = blockIdx.z * kSplitKeys;
    words_ = a.kv.head_dim / kN;
  }

  __device__ void run() {
    load();
    __syncthreads();
    for (int i = 0; i < rows_; ++i) {
      const VisibleKeys keys = s_.visible[i];
      keys_ = max(keys_, min(keys.end, base_ + kSplitKeys) - base_);
    }
    score();
    if (!mutated(Mutant::kSoftmaxWithoutBarrier)) __syncthreads();
    softmax();
    if (!mutated(Mutant::kWeighWithoutBarrier)) __syncthreads();
    weigh();
  }

 private:
  __device__ int64_t row_of(int query) const { return first_row_ + query / heads_; }
  __device__ int head_of(int query) const {
    const int head = first_head_ + query % heads_;
    return mutated(Mutant::kHeadsInTurn) ? query % heads_ * a_.kv.kv_heads + kv_head_ : head;
  }

  // Offset of a query's key in words; -1: not visible. key: index in the split.
  __device__ int64_t place(int query, int key) const {
    const VisibleKeys keys = s_.visible[query / heads_];
    const int number = base_ + key;
    if (key >= kSplitKeys || !keys.has(number)) return -1;
    const RowView& rows = a_.rows;
    const int row = number < keys.dense ? number : rows.extra[keys.extra + number - keys.others];
    const int64_t page = rows.pages[keys.table + row / rows.page_rows];
    const int heads = a_.kv.kv_heads + (mutated(Mutant::kPageStride) ? 1 : 0);
    return ((page * heads + kv_head_) * rows.page_rows + row % rows.page_rows) * words_;
  }

  __device__ void load() {
    if (static_cast<int>(threadIdx.x) < rows_) {
      s_.visible[threadIdx.x] = visible_keys(a_.rows, first_row_ + static_cast<int>(threadIdx.x));
    }
    const int d = a_.kv.head_dim;
    for (int i = threadIdx.x; i < queries_ * d; i += kAttentionThreads) {
      const int64_t at = row_of(i / d) * a_.q_stride + int64_t{head_of(i / d)} * d + i % d;
      s_.q[i] = static_cast<A>(a_.qkv[at]) * a_.scale;
    }
  }

  // Scores: eight threads per key, each with some of its words, for all queries that see the key.
  __device__ void score() {
    const Ptr<const Word> keys = words_of<Word>(a_.kv.keys);
    const int d = a_.kv.head_dim;
    const int lane = threadIdx.x % kKeyLanes;
    constexpr int kAtOnce = kAttentionThreads / kKeyLanes;
    for (int first = 0; first < keys_; first += kAtOnce) {
      const int key = first + static_cast<int>(threadIdx.x) / kKeyLanes;
      int64_t at[kQueries];
      A score[kQueries];
      int64_t of_row = -1;
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        if (j < queries_ && j % heads_ == 0) of_row = place(j, key);
        at[j] = j < queries_ ? of_row : -1;
        score[j] = 0;
      }
      for (int w = lane; w < words_; w += kKeyLanes) {
        int64_t have = -1;
        T x[kN];
#pragma unroll
        for (int j = 0; j < kQueries; ++j) {
          if (at[j] < 0) continue;
          if (at[j] != have) {
            have = at[j];
            take(keys, have + w, x);
          }
          for (int e = 0; e < kN; ++e) score[j] += s_.q[j * d + w * kN + e] * static_cast<A>(x[e]);
        }
      }
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        if (j >= queries_) continue;
        for (int step = kKeyLanes / 2; step > 0; step /= 2) {
          score[j] += __shfl_xor_sync(0xffffffffu, score[j], step);
        }
        if (lane == 0 && at[j] >= 0) {
          s_.weights[j * kSplitKeys + key] = score[j] + by_distance(j, base_ + key);
        }
      }
    }
  }

  __device__ A by_distance(int query, int number) const {
    const ScoresByDistance<A>& bias = a_.bias;
    if (bias.table == nullptr) return 0;
    const VisibleKeys keys = s_.visible[query / heads_];
    const int distance =
        mutated(Mutant::kDistanceTurned) ? keys.position - number : number - keys.position;
    const int64_t row = int64_t{head_of(query)} * (bias.before + 1 + bias.after) + bias.before;
    return bias.table[row + min(max(distance, -bias.before), bias.after)];
  }

  // Replaces scores by softmax weights. One warp per query.
  __device__ void softmax() {
    const int lane = threadIdx.x % kWarp;
    for (int j = threadIdx.x / kWarp; j < queries_; j += kAttentionWarps) {
      const VisibleKeys keys = s_.visible[j / heads_];
      const int at = j * kSplitKeys;
      A top = -INFINITY;
      for (int k = lane; k < keys_; k += kWarp) {
        if (keys.has(base_ + k)) top = larger(top, s_.weights[at + k]);
      }
      for (int step = kWarp / 2; step > 0; step /= 2) {
        top = larger(top, __shfl_xor_sync(0xffffffffu, top, step));
      }
      A total = 0;
      for (int k = lane; k < keys_; k += kWarp) {
        if (!keys.has(base_ + k)) continue;
        const A weight = exp(s_.weights[at + k] - top);
        s_.weights[at + k] = weight;
        total += weight;
      }
      total = warp_sum(total);
      if (lane == 0) {
        s_.tops[j] = top;
        s_.totals[j] = total;
      }
    }
  }

  // Adds weighted values, kPass queries at a time. Sixteen threads per value, one word each.
  __device__ void weigh() {
    for (int first = 0; first < queries_; first += kPass) {
      for (int w = 0; w < words_; w += kValueLanes) {
        add_values(first, w);
        if (!mutated(Mutant::kSumsWithoutBarrier)) __syncthreads();
        for (int i = threadIdx.x; i < kPassNumbers; i += kAttentionThreads) {
          const int query = first + i / (kValueLanes * kN);
          const int dimension = w * kN + i % (kValueLanes * kN);
          if (query < queries_ && is_head(dimension)) leave(query, dimension, i);
        }
        if (!mutated(Mutant::kPassesOverlap)) __syncthreads();
      }
    }
    const int j = threadIdx.x;
    if (a_.grid.splits == 1 || j >= queries_) return;
    const int64_t part = part_of(j);
    a_.parts.tops[part] = s_.tops[j];
    a_.parts.totals[part] = s_.totals[j];
  }

  __device__ bool is_head(int dimension) const {
    return dimension < a_.kv.head_dim || mutated(Mutant::kTailOfHead);
  }

  // Sums for the queries of a pass, words [first_word, first_word + kValueLanes), per warp.
  __device__ void add_values(int first, int first_word) {
    const Ptr<const Word> values = words_of<Word>(a_.kv.values);
    const int lane = threadIdx.x % kValueLanes;
    const int word = first_word + lane;
    const bool mine = word < words_;
    A sum[kPass][kN];
#pragma unroll
    for (int p = 0; p < kPass; ++p) {
      for (int e = 0; e < kN; ++e) sum[p][e] = 0;
    }
    for (int k = threadIdx.x / kValueLanes; mine && k < keys_;
         k += kAttentionThreads / kValueLanes) {
      int64_t have = -1;
      T x[kN];
#pragma unroll
      for (int p = 0; p < kPass; ++p) {
        if (first + p >= queries_) continue;
        const int64_t at = place(first + p, k);
        if (at < 0) continue;
        if (at != have) {
          have = at;
          take(values, have + word, x);
        }
        const A weight = s_.weights[(first + p) * kSplitKeys + k];
        for (int e = 0; e < kN; ++e) sum[p][e] += weight * static_cast<A>(x[e]);
      }
    }
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int p = 0; p < kPass; ++p) {
      for (int e = 0; e < kN; ++e) {
        const A both = sum[p][e] + __shfl_xor_sync(0xffffffffu, sum[p][e], kValueLanes);
        const int at = ((warp * kPass + p) * kValueLanes + lane) * kN + e;
        if (threadIdx.x % kWarp < kValueLanes) s_.sums[at] = both;
      }
    }
  }

  // i: index within the pass
  __device__ void leave(int query, int dimension, int i) {
    A sum = 0;
    for (int warp = 0; warp < kAttentionWarps; ++warp) sum += s_.sums[warp * kPassNumbers + i];
    const int d = a_.kv.head_dim;
    if (a_.grid.splits == 1) {
      const int64_t to = (row_of(query) * a_.kv.heads + head_of(query)) * d + dimension;
      a_.out[to] = static_cast<T>(sum / s_.totals[query]);
    } else {
      a_.parts.sums[part_of(query) * d + dimension] = sum;
    }
  }

  __device__ int64_t part_of(int query) const {
    return (row_of(query) * a_.kv.heads + head_of(query)) * a_.grid.splits + blockIdx.z;
  }

  static __device__ void take(Ptr<const Word> from, int64_t at, T (&x)[kN]) {
    const Word word = from[at];
    memcpy(x, &word, sizeof(word));
  }

  // Not fmax(), which drops NaN.
  static __device__ A larger(A a, A b) { return b > a || b != b ? b : a; }

  const AttentionArguments<T>& a_;
  Shared& s_;
  int first_row_, rows_;
  int kv_head_, first_head_, heads_;
  int queries_;   // rows times heads
  int base_;      // number of the split's first key
  int keys_ = 0;  // of the split, up to the last visible one
  int words_;     // per head
};

template <class T, class Word>
__global__ void attention_kernel(const __grid_constant__ AttentionArguments<T> a) {
  begin_launch();
  __shared__ typename AttentionBlock<T, Word>::Shared shared;
  AttentionBlock<T, Word>(a, shared).run();
}

// One thread block per row and query head. Merges the softmax of all splits in ascending order.
template <class T>
__global__ void merge_kernel(const __grid_constant__ AttentionArguments<T> a) {
  begin_launch();
  using A = Residual<T>;
  const int d = a.kv.head_dim;
  const int64_t head = int64_t{blockIdx.x} * a.kv.heads + blockIdx.y;
  const int64_t first = head * a.grid.splits;
  A best = -INFINITY;
  for (int s = 0; s < a.grid.splits; ++s) {
    if (a.parts.totals[first + s] == A(0)) continue;
    const A top = a.parts.tops[first + s];
    best = top > best || top != top ? top : best;
  }
  for (int i = threadIdx.x; i < d; i += kAttentionThreads) {
    A sum = 0;
    A whole = 0;
    for (int s = 0; s < a.grid.splits; ++s) {
      const A total = a.parts.totals[first + s];
      if (total == A(0)) continue;
      const A weight = mutated(Mutant::kNotRescaled) ? A(1) : exp(a.parts.tops[first + s] - best);
      sum += a.parts.sums[(first + s) * d + i] * weight;
      whole += total * weight;
    }
    a.out[head * d + i] = static_cast<T>(sum / whole);
  }
}

// Partition of a launch for these rows; it determines the size of AttentionParts.
template <class T>
AttentionGrid attention_grid(const RowView& rows, int heads, int kv_heads) {
  return AttentionGrid::of(rows, heads / kv_heads, kMaxQueries<Residual<T>>);
}

// REQUIRES: head_dim <= kMaxHeadDim; a.grid is attention_grid(); a.parts is set if it has several
// splits.
template <class T>
void attention(Stream stream, const AttentionArguments<T>& a) {
  const AttentionGrid& g = a.grid;
  const bool wide = a.kv.head_dim * sizeof(T) % sizeof(uint4) == 0;
  launch(stream, wide ? attention_kernel<T, uint4> : attention_kernel<T, T>,
         {kAttentionThreads, (a.rows.rows + g.block_rows - 1) / g.block_rows,
          a.kv.kv_heads * g.head_parts, g.splits},
         a);
  if (g.splits == 1) return;
  launch(stream, merge_kernel<T>, {kAttentionThreads, a.rows.rows, a.kv.heads}, a);
}

}  // namespace tandem::cuda
