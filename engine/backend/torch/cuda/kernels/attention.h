// Paged attention: split-KV ("flash decoding"). CUDA counterpart of cpu/attention.h.
//
// Keys are numbered as there and split every kSplitKeys. A thread block processes one kv head, one
// split and several consecutive rows with all query heads of the group, so their common keys are
// read once. Each split has its own softmax (arXiv:1805.02867), and splits are merged in ascending
// order. The assignment of keys to threads depends only on key numbers, so a row has the same bits
// in any batch, page layout, tree or chain. Chunks that a library attends to (prompt_attention.h)
// are another matter. All multiply-adds are fused explicitly, so that variants of the kernel have
// the same bits.
//
// A thread block first looks up the places of its keys. Threads then have several loads of 16 bytes
// in flight. A split that all rows of the block see alike is plain: one place per key suffices.
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
inline constexpr int kSplitKeys = 64;  // a power of two; fewer than cpu::kSplitKeys: more blocks
inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarp;

inline constexpr int kFewQueries = 4;  // up to this number, a variant with more keys in flight

// Maximum queries per thread block. Queries, scores and places are in shared memory.
template <class A>
inline constexpr int kMaxQueries = sizeof(A) == 8    ? kFewQueries
                                   : kSplitKeys > 64 ? 8
                                                     : 16;

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
  int slice_rows = 1;   // rows of one launch, a multiple of block_rows unless all

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

// Partial results of splits, merged if there are several. rows: slice_rows
template <class A>
struct AttentionParts {
  Ptr<A> sums = nullptr;    // [rows, heads, splits, head_dim]: weighted sums of values
  Ptr<A> tops = nullptr;    // [rows, heads, splits]: maximum score
  Ptr<A> totals = nullptr;  // [rows, heads, splits]: sum of weights; 0: no visible key
};
inline constexpr int64_t kMostPartBytes = int64_t{64} << 20;

struct HeadShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
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
  int first_row = 0, end_row = 0;  // the launch's slice; set by attention()
};

// The larger number. Not fmax(), which drops NaN.
template <class A>
__device__ A larger(A a, A b) {
  return b > a || b != b ? b : a;
}

// The work of one thread block of up to kQueries queries. Data is read in words of type Word: 16
// bytes, or single elements if head_dim is not a multiple of 16 bytes.
template <class T, class Word, int kQueries>
class AttentionBlock {
 public:
  using A = Residual<T>;
  static constexpr int kN = sizeof(Word) / sizeof(T);  // elements per word
  static constexpr int kKeyLanes = 8;                  // threads per key's score
  static constexpr int kKeyWords = 2;                  // a thread's words of a key at once
  static constexpr int kKeyGroups = kAttentionThreads / kKeyLanes;
  static constexpr int kValueLanes = 16;  // threads per value
  static constexpr int kValueGroups = kAttentionThreads / kValueLanes;
  static constexpr int kKeys = kQueries <= kFewQueries ? 4 : 2;    // a thread's keys at once
  static constexpr int kValues = kQueries <= kFewQueries ? 8 : 4;  // a thread's values at once
  static constexpr int kPass = 4;  // queries that are processed together, unless there is one
  static constexpr int kPassNumbers = kPass * kValueLanes * kN;
  // Elements of a word of q per 16 bytes of shared memory; see q_at().
  static constexpr int kChunk = kN * sizeof(A) > sizeof(uint4) ? sizeof(uint4) / sizeof(A) : kN;

  struct Shared {
    SharedArray<VisibleKeys, kQueries> visible;      // per row
    SharedArray<int, kQueries> row;                  // per query, of the block; padding: 0
    SharedArray<int, kQueries * kSplitKeys> places;  // per row and key: see place()
    SharedArray<A, kQueries * kMaxHeadDim> q;
    SharedArray<A, kQueries * kSplitKeys> weights;  // scores, then weights
    SharedArray<A, kQueries> tops, totals;
    SharedArray<A, kAttentionWarps * kPassNumbers> sums;  // per warp
  };

  __device__ AttentionBlock(const AttentionArguments<T>& a, Shared& shared) : a_(a), s_(shared) {
    const int group = a.kv.heads / a.kv.kv_heads;
    first_row_ = a.first_row + blockIdx.x * a.grid.block_rows;
    rows_ = min(a.grid.block_rows, a.end_row - first_row_);
    const int part = blockIdx.y % a.grid.head_parts * a.grid.block_heads;
    kv_head_ = blockIdx.y / a.grid.head_parts;
    heads_ = min(a.grid.block_heads, group - part);
    first_head_ = kv_head_ * group + part;
    queries_ = rows_ * heads_;
    padded_ = (queries_ + kPass - 1) / kPass * kPass;
    base_ = blockIdx.z * kSplitKeys;
    words_ = a.kv.head_dim / kN;
  }

  __device__ void run() {
    load();
    __syncthreads();
    look();
    if (from_ >= keys_ && a_.grid.splits > 1) {  // no row sees this split
      leave_totals(true);
      return;
    }
    find_places();
    if (!mutated(Mutant::kPlacesWithoutBarrier)) __syncthreads();
    if (!plain_) {
      attend<false, kPass>();
    } else if (queries_ == 1) {
      attend<true, 1>();
    } else {
      attend<true, kPass>();
    }
  }

 private:
  __device__ int64_t row_of(int query) const { return first_row_ + query / heads_; }
  __device__ int head_of(int query) const {
    const int head = first_head_ + query % heads_;
    return mutated(Mutant::kHeadsInTurn) ? query % heads_ * a_.kv.kv_heads + kv_head_ : head;
  }

  __device__ void load() {
    if (static_cast<int>(threadIdx.x) < rows_) {
      s_.visible[threadIdx.x] = visible_keys(a_.rows, first_row_ + static_cast<int>(threadIdx.x));
    }
    if (static_cast<int>(threadIdx.x) < padded_) {
      const int j = threadIdx.x;
      s_.row[j] = j < queries_ ? j / heads_ : 0;
    }
    const int d = a_.kv.head_dim;
#pragma unroll 1
    for (int j = threadIdx.x / kWarp; j < padded_; j += kAttentionWarps) {
      const bool padding = j >= queries_;
      const int64_t from = padding ? 0 : row_of(j) * a_.q_stride + int64_t{head_of(j)} * d;
#pragma unroll 4
      for (int i = threadIdx.x % kWarp; i < d; i += kWarp) {
        const A x = padding ? A(0) : static_cast<A>(a_.qkv[from + i]);
        s_.q[j * d + q_at(i / kN, i % kN)] = x * a_.scale;
      }
    }
  }

  // Place of an element of a query: words of 16 bytes that lanes read together are adjacent.
  __device__ int q_at(int word, int element) const {
    return (element / kChunk * words_ + word) * kChunk + element % kChunk;
  }

  // The keys of the split that some row sees, and whether all rows see them all at one place.
  __device__ void look() {
    const VisibleKeys one = s_.visible[0];
    const auto in_split = [&](int number) { return min(max(number - base_, 0), kSplitKeys); };
    from_ = kSplitKeys;
    keys_ = 0;
    plain_ = true;
#pragma unroll 1
    for (int i = 0; i < rows_; ++i) {
      const VisibleKeys keys = s_.visible[i];
      const int first = in_split(keys.first), dense = in_split(keys.dense);
      const int others = in_split(keys.others), end = in_split(keys.end);
      if (first < dense) {
        from_ = min(from_, first);
        keys_ = max(keys_, dense);
      }
      if (others < end) {
        from_ = min(from_, others);
        keys_ = max(keys_, end);
        plain_ = false;
      }
      const bool alike =
          keys.table == one.table && first == in_split(one.first) && dense == in_split(one.dense);
      if (!alike && !mutated(Mutant::kPlainAlways)) plain_ = false;
    }
  }

  // Where the key and value of a row's key are, counted in heads of one cache row; -1: not visible
  // or outside the block's keys. key: index in the split. Pools have fewer than 2^31 such places.
  __device__ int place(int row, int key) const {
    const VisibleKeys keys = s_.visible[row];
    const int number = base_ + key;
    if (key < from_ || key >= keys_ || !keys.has(number)) return -1;
    const RowView& rows = a_.rows;
    const int at = number < keys.dense ? number : rows.extra[keys.extra + number - keys.others];
    const int page = rows.pages[keys.table + at / rows.page_rows];
    const int heads = a_.kv.kv_heads + (mutated(Mutant::kPageStride) ? 1 : 0);
    return (page * heads + kv_head_) * rows.page_rows + at % rows.page_rows;
  }

  __device__ void find_places() {
    const Ptr<const Word> values = words_of<Word>(a_.kv.values);
    const int rows = plain_ ? 1 : rows_;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * kSplitKeys; i += kAttentionThreads) {
      const int at = place(i / kSplitKeys, i % kSplitKeys);
      s_.places[i] = at;
      if (at < 0 || i / kSplitKeys != rows - 1) continue;
      constexpr int kLine = 128 / sizeof(Word);  // of L2
#pragma unroll 1
      for (int w = 0; w < words_; w += kLine) prefetch(values, int64_t{at} * words_ + w);
    }
  }

  // kTogether: queries that are processed together; those past the last are padding.
  template <bool kPlain, int kTogether>
  __device__ void attend() {
    score<kPlain, kTogether>();
    if (!mutated(Mutant::kSoftmaxWithoutBarrier)) __syncthreads();
    softmax();
    if (!mutated(Mutant::kWeighWithoutBarrier)) __syncthreads();
    weigh<kPlain, kTogether>();
  }

  __device__ int found(int row, int key) const { return s_.places[row * kSplitKeys + key]; }

  // Scores: eight threads per key, each with some of its words, for all queries that see the key.
  // Threads load the keys of the block's last row, which sees most; other places are loaded when
  // they are needed.
  template <bool kPlain, int kTogether>
  __device__ void score() {
    const Ptr<const Word> keys = words_of<Word>(a_.kv.keys);
    const int d = a_.kv.head_dim;
    const int lane = threadIdx.x % kKeyLanes;
    const int group = threadIdx.x / kKeyLanes;
    constexpr int kAtOnce = kKeyGroups * kKeys;
    constexpr int kMine = kTogether == 1 ? 1 : kQueries;
    static_assert(kSplitKeys % kAtOnce == 0);
#pragma unroll 1
    for (int first = from_ / kAtOnce * kAtOnce; first < keys_; first += kAtOnce) {
      int at[kKeys];
      A score[kMine][kKeys];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        at[u] = found(kPlain ? 0 : rows_ - 1, first + group + u * kKeyGroups);
#pragma unroll
        for (int j = 0; j < kMine; ++j) score[j][u] = 0;
      }
#pragma unroll 1
      for (int begin = lane; begin < words_; begin += kKeyWords * kKeyLanes) {
        Word x[kKeys][kKeyWords];
#pragma unroll
        for (int i = 0; i < kKeys * kKeyWords; ++i) {
          const int u = i / kKeyWords, w = begin + i % kKeyWords * kKeyLanes;
          x[u][i % kKeyWords] = at[u] >= 0 && w < words_ ? keys[word_of(at[u], w)] : Word{};
        }
#pragma unroll
        for (int v = 0; v < kKeyWords; ++v) {
          const int w = begin + v * kKeyLanes;
          if (w >= words_) continue;
          A numbers[kKeys][kN];
#pragma unroll
          for (int u = 0; u < kKeys; ++u) take(x[u][v], numbers[u]);
#pragma unroll
          for (int t = 0; t < kMine; t += kTogether) {
            if (t >= queries_) continue;
#pragma unroll
            for (int j = t; j < t + kTogether; ++j) {
              A q[kN];
              take_query(j * d, w, q);
              const int row = kPlain ? 0 : static_cast<int>(s_.row[j]);
#pragma unroll
              for (int u = 0; u < kKeys; ++u) {
                const int own = kPlain ? at[u] : found(row, first + group + u * kKeyGroups);
                if (!kPlain && own < 0) continue;
                if (kPlain || own == at[u]) {
                  multiply(score[j][u], q, numbers[u]);
                } else {
                  A other[kN];
                  take(keys[word_of(own, w)], other);
                  multiply(score[j][u], q, other);
                }
              }
            }
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kMine; t += kTogether) {
        if (t >= queries_) continue;
        leave_scores<kPlain, kTogether>(t, first + group, lane, &score[t]);
      }
    }
  }

  // Adds the lanes' shares of the scores of queries [query, query + kTogether) and a thread's keys,
  // in one order for all. Lanes exchange half of their numbers in each step.
  template <bool kPlain, int kTogether>
  __device__ void leave_scores(int query, int first_key, int lane, A (*score)[kKeys]) {
    if constexpr (kTogether * kKeys == kKeyLanes) {
      A four[4], two[2];
      const bool upper = (lane & 4) != 0, second = (lane & 2) != 0, odd = (lane & 1) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const A low = score[i / kKeys][i % kKeys], high = score[i / kKeys + 2][i % kKeys];
        four[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, 4);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        two[i] = (second ? four[i + 2] : four[i]) +
                 __shfl_xor_sync(0xffffffffu, second ? four[i] : four[i + 2], 2);
      }
      const A sum =
          (odd ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, odd ? two[0] : two[1], 1);
      leave_score<kPlain>(query + lane / kKeys, first_key + lane % kKeys * kKeyGroups, sum);
    } else {
#pragma unroll
      for (int i = 0; i < kTogether * kKeys; ++i) {
        A sum = score[i / kKeys][i % kKeys];
        for (int step = kKeyLanes / 2; step > 0; step /= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        if (lane != 0) continue;
        leave_score<kPlain>(query + i / kKeys, first_key + i % kKeys * kKeyGroups, sum);
      }
    }
  }

  template <bool kPlain>
  __device__ void leave_score(int query, int key, A score) {
    if (query >= queries_ || found(kPlain ? 0 : s_.row[query], key) < 0) return;
    s_.weights[query * kSplitKeys + key] = score;
  }

  // A word of the query that begins at `from`.
  __device__ void take_query(int from, int word, A (&q)[kN]) {
#pragma unroll
    for (int c = 0; c < kN; c += kChunk) {
      A chunk[kChunk];
      s_.q.take(from + q_at(word, c), chunk);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) q[c + e] = chunk[e];
    }
  }

  static __device__ void multiply(A& sum, const A (&x)[kN], const A (&y)[kN]) {
#pragma unroll
    for (int e = 0; e < kN; ++e) sum = fma(x[e], y[e], sum);
  }

  __device__ A by_distance(int query, int number) const {
    const ScoresByDistance<A>& bias = a_.bias;
    const VisibleKeys keys = s_.visible[query / heads_];
    const int distance =
        mutated(Mutant::kDistanceTurned) ? keys.position - number : number - keys.position;
    const int64_t row = int64_t{head_of(query)} * (bias.before + 1 + bias.after) + bias.before;
    return bias.table[row + min(max(distance, -bias.before), bias.after)];
  }

  // Replaces scores by softmax weights. One warp per query.
  __device__ void softmax() {
    const int lane = threadIdx.x % kWarp;
    for (int j = threadIdx.x / kWarp; j < padded_; j += kAttentionWarps) {
      const int at = j * kSplitKeys;
      if (j >= queries_) {
        for (int k = lane; k < keys_; k += kWarp) s_.weights[at + k] = 0;
        continue;
      }
      const VisibleKeys keys = s_.visible[j / heads_];
      A top = -INFINITY;
#pragma unroll 2
      for (int k = lane; k < keys_; k += kWarp) {
        if (!keys.has(base_ + k)) continue;
        A score = s_.weights[at + k];
        if (!(a_.bias.table == nullptr)) {
          score += by_distance(j, base_ + k);
          s_.weights[at + k] = score;
        }
        top = larger(top, score);
      }
      for (int step = kWarp / 2; step > 0; step /= 2) {
        top = larger(top, __shfl_xor_sync(0xffffffffu, top, step));
      }
      A total = 0;
#pragma unroll 2
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
  template <bool kPlain, int kTogether>
  __device__ void weigh() {
    for (int first = 0; first < queries_; first += kTogether) {
      const int numbers = min(kTogether, queries_ - first) * kValueLanes * kN;
      for (int w = 0; w < words_; w += kValueLanes) {
        add_values<kPlain, kTogether>(first, w);
        if (!mutated(Mutant::kSumsWithoutBarrier)) __syncthreads();
        for (int i = threadIdx.x; i < numbers; i += kAttentionThreads) {
          const int query = first + i / (kValueLanes * kN);
          const int dimension = w * kN + i % (kValueLanes * kN);
          if (is_head(dimension)) leave(query, dimension, i);
        }
        if (!mutated(Mutant::kPassesOverlap)) __syncthreads();
      }
    }
    if (a_.grid.splits > 1) leave_totals(false);
  }

  // none: no key of the split is visible; its sums are not read.
  __device__ void leave_totals(bool none) {
    const int j = threadIdx.x;
    if (j >= queries_) return;
    const int64_t part = part_of(j);
    a_.parts.tops[part] = none ? A(-INFINITY) : static_cast<A>(s_.tops[j]);
    a_.parts.totals[part] = none ? A(0) : static_cast<A>(s_.totals[j]);
  }

  __device__ bool is_head(int dimension) const {
    return dimension < a_.kv.head_dim || mutated(Mutant::kTailOfHead);
  }

  // Sums for the queries of a pass, words [first_word, first_word + kValueLanes), per warp. Threads
  // load the values of the pass's last row, as in score().
  template <bool kPlain, int kTogether>
  __device__ void add_values(int first, int first_word) {
    const Ptr<const Word> values = words_of<Word>(a_.kv.values);
    const int lane = threadIdx.x % kValueLanes;
    const int group = threadIdx.x / kValueLanes;
    const int word = first_word + lane;
    const bool mine = word < words_;
    const int pass = min(kTogether, queries_ - first);
    const int last_row = kPlain ? 0 : static_cast<int>(s_.row[first + pass - 1]);
    A sum[kTogether][kN];
    int rows[kTogether];
#pragma unroll
    for (int p = 0; p < kTogether; ++p) {
      rows[p] = kPlain ? 0 : static_cast<int>(s_.row[first + p]);
#pragma unroll
      for (int e = 0; e < kN; ++e) sum[p][e] = 0;
    }
    constexpr int kAtOnce = kValueGroups * kValues;
#pragma unroll 1
    for (int begin = from_ / kAtOnce * kAtOnce + group; mine && begin < keys_; begin += kAtOnce) {
      int at[kValues];
      Word x[kValues];
#pragma unroll
      for (int u = 0; u < kValues; ++u) {
        at[u] = found(last_row, begin + u * kValueGroups);
        x[u] = at[u] >= 0 ? values[word_of(at[u], word)] : Word{};
      }
#pragma unroll
      for (int u = 0; u < kValues; ++u) {
        if (kPlain && at[u] < 0) continue;
        const int key = begin + u * kValueGroups;
        A numbers[kN];
        take(x[u], numbers);
#pragma unroll
        for (int p = 0; p < kTogether; ++p) {
          if (!kPlain && p >= pass) continue;
          const int own = kPlain ? at[u] : found(rows[p], key);
          if (!kPlain && own < 0) continue;
          const A weight = s_.weights[(first + p) * kSplitKeys + key];
          if (kPlain || own == at[u]) {
            add(sum[p], weight, numbers);
          } else {
            A other[kN];
            take(values[word_of(own, word)], other);
            add(sum[p], weight, other);
          }
        }
      }
    }
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int p = 0; p < kTogether; ++p) {
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        sum[p][e] += __shfl_xor_sync(0xffffffffu, sum[p][e], kValueLanes);
      }
      const int to = ((warp * kPass + p) * kValueLanes + lane) * kN;
      if (threadIdx.x % kWarp < kValueLanes) s_.sums.put(to, sum[p]);
    }
  }

  static __device__ void add(A (&sum)[kN], A weight, const A (&x)[kN]) {
#pragma unroll
    for (int e = 0; e < kN; ++e) sum[e] = fma(weight, x[e], sum[e]);
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
    const int64_t row =
        mutated(Mutant::kPartsOfAllRows) ? row_of(query) : row_of(query) - a_.first_row;
    return (row * a_.kv.heads + head_of(query)) * a_.grid.splits + blockIdx.z;
  }

  __device__ int64_t word_of(int at, int word) const { return int64_t{at} * words_ + word; }

  static __device__ void take(const Word& word, A (&x)[kN]) {
    T numbers[kN];
    memcpy(numbers, &word, sizeof(word));
#pragma unroll
    for (int e = 0; e < kN; ++e) x[e] = static_cast<A>(numbers[e]);
  }

  const AttentionArguments<T>& a_;
  Shared& s_;
  int first_row_, rows_;
  int kv_head_, first_head_, heads_;
  int queries_;  // rows times heads
  int padded_;   // with padding: a multiple of kPass
  int base_;     // number of the split's first key
  // Keys of the split, from the first visible one up to the last; see look().
  int from_ = 0, keys_ = 0;
  bool plain_ = false;
  int words_;  // per head
};

template <class T, class Word, int kQueries>
__global__ void __launch_bounds__(kAttentionThreads, 4)
    attention_kernel(const __grid_constant__ AttentionArguments<T> a) {
  begin_launch();
  __shared__ typename AttentionBlock<T, Word, kQueries>::Shared shared;
  AttentionBlock<T, Word, kQueries>(a, shared).run();
}

inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeWarps = kMergeThreads / kWarp;

// Merges the softmax of all splits of one row and query head. A thread weighs every
// kMergeThreads-th split. Group g of threads adds the sums of splits g, g + groups and so on,
// kLoads words at once. Which split belongs to which thread depends on its number only.
template <class T, class Word>
class MergeBlock {
 public:
  using A = Residual<T>;
  static constexpr int kN = sizeof(Word) / sizeof(A);
  static constexpr int kLoads = 4;

  struct Shared {
    SharedArray<A, kMergeThreads> weights;  // of kMergeThreads splits; negative: no visible key
    SharedArray<A, kMergeWarps> tops, totals;
    SharedArray<A, kMergeThreads * kN> sums;  // [groups, head_dim]
  };

  __device__ MergeBlock(const AttentionArguments<T>& a, Shared& shared)
      : a_(a),
        s_(shared),
        head_(int64_t{blockIdx.x} * a.kv.heads + blockIdx.y),
        first_(head_ * a.grid.splits),
        thread_(static_cast<int>(threadIdx.x)),
        lanes_(a.kv.head_dim / kN),
        groups_(kMergeThreads / lanes_) {}

  __device__ void run() {
    const A best = find_best();
    const int lane = thread_ % lanes_, group = thread_ / lanes_;
    A sum[kN];
#pragma unroll
    for (int e = 0; e < kN; ++e) sum[e] = 0;
    A total = 0;
    for (int begin = 0; begin < a_.grid.splits; begin += kMergeThreads) {
      if (begin > 0 && !mutated(Mutant::kMergeOverlap)) __syncthreads();
      total += weigh(begin, best);
      if (!mutated(Mutant::kMergeWithoutBarrier)) __syncthreads();
      if (group < groups_) add(begin, group, lane, sum);
      if (mutated(Mutant::kMergeFirst)) break;
    }
    total = warp_sum(total);
    if (thread_ % kWarp == 0) s_.totals[thread_ / kWarp] = total;
    if (group < groups_) {
#pragma unroll
      for (int e = 0; e < kN; ++e) s_.sums[thread_ * kN + e] = sum[e];
    }
    __syncthreads();
    const int d = a_.kv.head_dim;
    if (thread_ >= d) return;
    A whole = 0, y = 0;
    for (int warp = 0; warp < kMergeWarps; ++warp) whole += s_.totals[warp];
    for (int g = 0; g < groups_; ++g) y += s_.sums[g * d + thread_];
    const int64_t first_head =
        mutated(Mutant::kMergeFirstRows) ? 0 : int64_t{a_.first_row} * a_.kv.heads;
    a_.out[(first_head + head_) * d + thread_] = static_cast<T>(y / whole);
  }

 private:
  // The maximum score of all splits.
  __device__ A find_best() {
    A best = -INFINITY;
    for (int s = thread_; s < a_.grid.splits; s += kMergeThreads) {
      if (a_.parts.totals[first_ + s] == A(0)) continue;
      best = larger(best, static_cast<A>(a_.parts.tops[first_ + s]));
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      best = larger(best, __shfl_xor_sync(0xffffffffu, best, step));
    }
    if (thread_ % kWarp == 0) s_.tops[thread_ / kWarp] = best;
    __syncthreads();
    for (int warp = 0; warp < kMergeWarps; ++warp) {
      best = larger(best, static_cast<A>(s_.tops[warp]));
    }
    return best;
  }

  // Sets the thread's weight of splits from `begin` on. Returns its weighted total.
  __device__ A weigh(int begin, A best) {
    const int s = begin + thread_;
    A weight = -1;
    A total = 0;
    if (s < a_.grid.splits) {
      total = a_.parts.totals[first_ + s];
      if (!(total == A(0))) {
        weight = mutated(Mutant::kNotRescaled) ? A(1) : exp(a_.parts.tops[first_ + s] - best);
        total *= weight;
      }
    }
    s_.weights[thread_] = weight;
    return total;
  }

  // Adds a group's share of the splits' sums.
  __device__ void add(int begin, int group, int lane, A (&sum)[kN]) {
    const Ptr<const Word> sums = words_of<Word>(a_.parts.sums);
    for (int s = group; s < min(kMergeThreads, a_.grid.splits - begin); s += kLoads * groups_) {
      A weight[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int at = s + u * groups_;
        weight[u] = at < kMergeThreads ? static_cast<A>(s_.weights[at]) : A(-1);
      }
      Word x[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int64_t at = first_ + begin + s + u * groups_;
        x[u] = weight[u] < A(0) ? Word{} : sums[at * lanes_ + lane];
      }
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const A w = weight[u] < A(0) ? A(0) : weight[u];  // then also x is zero
        A numbers[kN];
        memcpy(numbers, &x[u], sizeof(Word));
#pragma unroll
        for (int e = 0; e < kN; ++e) sum[e] = fma(numbers[e], w, sum[e]);
      }
    }
  }

  const AttentionArguments<T>& a_;
  Shared& s_;
  const int64_t head_;   // among the heads of the slice's rows
  const int64_t first_;  // its first split
  const int thread_;
  const int lanes_;   // threads per sum
  const int groups_;  // of threads
};

// One thread block per row of the slice and query head.
template <class T, class Word>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ AttentionArguments<T> a) {
  begin_launch();
  __shared__ typename MergeBlock<T, Word>::Shared shared;
  MergeBlock<T, Word>(a, shared).run();
}

// Partition of a launch for these rows; it determines the size of AttentionParts. most_bytes: of
// the parts, unless one row needs more.
template <class T>
AttentionGrid attention_grid(const RowView& rows, const HeadShape& heads,
                             int64_t most_bytes = kMostPartBytes) {
  using A = Residual<T>;
  AttentionGrid g = AttentionGrid::of(rows, heads.heads / heads.kv_heads, kMaxQueries<A>);
  const int64_t row_bytes =
      int64_t{heads.heads} * g.splits * (heads.head_dim + 2) * static_cast<int64_t>(sizeof(A));
  if (g.splits > 1 && row_bytes * g.block_rows > most_bytes) {
    g.block_rows = most_bytes < row_bytes ? 1 : static_cast<int>(most_bytes / row_bytes);
  }
  const int64_t blocks = most_bytes / (row_bytes * g.block_rows);
  g.slice_rows = rows.rows;
  if (g.splits > 1 && blocks * g.block_rows < rows.rows) {
    g.slice_rows = static_cast<int>(blocks < 1 ? 1 : blocks) * g.block_rows;
  }
  return g;
}

// REQUIRES: head_dim <= kMaxHeadDim; a.grid is attention_grid(); a.parts is set if it has several
// splits.
template <class T>
void attention(Stream stream, AttentionArguments<T> a) {
  using A = Residual<T>;
  const AttentionGrid& g = a.grid;
  const bool wide = a.kv.head_dim * sizeof(T) % sizeof(uint4) == 0;
  const bool few = g.block_rows * g.block_heads <= kFewQueries;
  const auto kernel = !wide ? attention_kernel<T, T, kMaxQueries<A>>
                      : few ? attention_kernel<T, uint4, kFewQueries>
                            : attention_kernel<T, uint4, kMaxQueries<A>>;
  const bool wide_sums = a.kv.head_dim * sizeof(A) % sizeof(uint4) == 0;
  for (int first = 0; first < a.rows.rows; first += g.slice_rows) {
    const int left = a.rows.rows - first;
    const int rows = left < g.slice_rows ? left : g.slice_rows;
    a.first_row = first;
    a.end_row = first + rows;
    launch(stream, kernel,
           {kAttentionThreads, (rows + g.block_rows - 1) / g.block_rows,
            a.kv.kv_heads * g.head_parts, g.splits},
           a);
    if (g.splits == 1) continue;
    launch(stream, wide_sums ? merge_kernel<T, uint4> : merge_kernel<T, A>,
           {kMergeThreads, rows, a.kv.heads}, a);
  }
}

}  // namespace tandem::cuda
