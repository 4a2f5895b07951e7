#include "engine/backend/torch/cpu/attention_split.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/torch/cpu/attention_split.cpp"
#include "hwy/foreach_target.h"  // compiles this file once per target
// Included after foreach_target.h:
#include "engine/backend/torch/cpu/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class A>
inline constexpr int kVector = static_cast<int>(HWY_LANES(A));

// Queries that share each read of a key, limited by the number of registers.
inline constexpr int kMaxQueries = 6;

// Distance between the scores of two queries. The padding allows whole-vector stores at any offset.
inline constexpr int kScoreStride = kSplitKeys + kLanes;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* p) {
  const hn::Rebind<hwy::bfloat16_t, D> half;
  return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}
// The first n elements, then zeros.
template <class D, class K>
HWY_INLINE hn::Vec<D> load_part(D d, const K* p, int n) {
  K part[kVector<hn::TFromD<D>>] = {};
  std::copy_n(p, n, part);
  return load(d, part);
}

// Calls f.operator()<kQueries>(), kQueries = 1 .. kMaxQueries.
template <class F>
HWY_INLINE void for_queries(int n, const F& f) {
  switch (n) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    case 4:
      return f.template operator()<4>();
    case 5:
      return f.template operator()<5>();
    default:
      return f.template operator()<6>();
  }
}

// Pages give runs that are too short for the hardware prefetcher.
inline constexpr int kRowsAhead = 16;  // value rows
template <int kVectors, class A, class K>
HWY_INLINE void fetch_ahead(const K* p) {
  constexpr int kLine = 64;
  for (int byte = 0; byte < kVectors * kVector<A> * static_cast<int>(sizeof(K)); byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + byte);
  }
}

// Scores of kQueries queries against kVectors vectors of keys. key[v] points to dimension 0 of
// vector v; dimensions are `stride` elements apart. Each score is one sum in the order of the
// dimensions. next[v]: the vectors to prefetch.
template <int kVectors, int kQueries, bool kAhead, class A, class K>
HWY_INLINE void score_vectors(const K* const* key, const K* const* next, int64_t stride, const A* q,
                              int head_dim, A* score) {
  const hn::ScalableTag<A> d;
  hn::Vec<decltype(d)> sum[kQueries][kVectors];
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::Zero(d);
  }
  for (int i = 0; i < head_dim; ++i) {
    hn::Vec<decltype(d)> k[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      k[v] = load(d, key[v] + i * stride);
      if (kAhead) fetch_ahead<1, A>(next[v] + i * stride);
    }
    for (int j = 0; j < kQueries; ++j) {
      const auto x = hn::Set(d, q[j * head_dim + i]);
      for (int v = 0; v < kVectors; ++v) sum[j][v] = hn::MulAdd(x, k[v], sum[j][v]);
    }
  }
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[j][v], d, score + j * kScoreStride + v * kVector<A>);
    }
  }
}

// score_vectors() for `vectors` vectors. Their scores are written consecutively.
template <bool kAhead, class A, class K>
void score(const K* const* key, int vectors, int64_t stride, const A* q, int queries, int head_dim,
           A* score) {
  for_queries(queries, [&]<int kQueries>() {
    constexpr int kWide = kQueries <= 2 ? 4 : 2;
    int v = 0;
    for (; v + kWide <= vectors; v += kWide) {
      const K* const* next = key + (v + 2 * kWide <= vectors ? v + kWide : v);
      score_vectors<kWide, kQueries, kAhead>(key + v, next, stride, q, head_dim,
                                             score + v * kVector<A>);
    }
    for (; v < vectors; ++v) {
      score_vectors<1, kQueries, false>(key + v, key + v, stride, q, head_dim,
                                        score + v * kVector<A>);
    }
  });
}

// sum[j] += weight[j][k] * value[k] for k = from .. to - 1, in order, for kVectors vectors of
// dimensions. With kPart: for the first `part` dimensions of one vector.
template <int kVectors, int kQueries, bool kPart, bool kAhead, class A, class K>
HWY_INLINE void weigh_vectors(const K* const* value, int from, int to, const A* weight, A* sum,
                              int64_t sum_stride, int dimension, int part) {
  const hn::ScalableTag<A> d;
  hn::Vec<decltype(d)> s[kQueries][kVectors];
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      s[j][v] = hn::LoadU(d, sum + j * sum_stride + dimension + v * kVector<A>);
    }
  }
  for (int k = from; k < to; ++k) {
    const K* row = value[k] + dimension;
    if (kAhead) fetch_ahead<kVectors, A>(value[std::min(k + kRowsAhead, to - 1)] + dimension);
    hn::Vec<decltype(d)> x[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = kPart ? load_part(d, row, part) : load(d, row + v * kVector<A>);
    }
    for (int j = 0; j < kQueries; ++j) {
      const auto w = hn::Set(d, weight[j * kScoreStride + k]);
      for (int v = 0; v < kVectors; ++v) s[j][v] = hn::MulAdd(w, x[v], s[j][v]);
    }
  }
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(s[j][v], d, sum + j * sum_stride + dimension + v * kVector<A>);
    }
  }
}

template <bool kAhead, class A, class K>
void weigh(const K* const* value, int from, int to, const A* weight, int queries, A* sum,
           int64_t sum_stride, int head_dim) {
  if (from >= to) return;
  for_queries(queries, [&]<int kQueries>() {
    constexpr int kWide = kQueries == 1 ? 8 : HWY_MAX_BYTES >= 64 || kQueries <= 2 ? 4 : 2;
    constexpr int n = kVector<A>;
    int i = 0;
    for (; i + kWide * n <= head_dim; i += kWide * n) {
      weigh_vectors<kWide, kQueries, false, kAhead>(value, from, to, weight, sum, sum_stride, i, 0);
    }
    if constexpr (kWide > 4) {
      for (; i + 4 * n <= head_dim; i += 4 * n) {
        weigh_vectors<4, kQueries, false, kAhead>(value, from, to, weight, sum, sum_stride, i, 0);
      }
    }
    if constexpr (kWide > 2) {
      for (; i + 2 * n <= head_dim; i += 2 * n) {
        weigh_vectors<2, kQueries, false, kAhead>(value, from, to, weight, sum, sum_stride, i, 0);
      }
    }
    for (; i + n <= head_dim; i += n) {
      weigh_vectors<1, kQueries, false, false>(value, from, to, weight, sum, sum_stride, i, 0);
    }
    if (i < head_dim) {
      weigh_vectors<1, kQueries, true, false>(value, from, to, weight, sum, sum_stride, i,
                                              head_dim - i);
    }
  });
}

// Replaces scores [from, to) by the weights exp(score - top). Partial sums are indexed by key
// modulo 16, so the result does not depend on the vector width.
template <class A>
void to_weights(A* score, int from, int to, A& top, A& sum) {
  const hn::ScalableTag<A> d;
  constexpr int n = kVector<A>;
  constexpr int kParts = kLanes / n;
  constexpr A kLeast = -std::numeric_limits<A>::infinity();
  const int begin = from / kLanes * kLanes;
  const int end = (to + kLanes - 1) / kLanes * kLanes;
  std::fill(score + begin, score + from, kLeast);
  std::fill(score + to, score + end, kLeast);
  auto most = hn::Set(d, kLeast);
  for (int k = begin; k < end; k += n) most = hn::Max(most, hn::LoadU(d, score + k));
  top = hn::GetLane(hn::MaxOfLanes(d, most));
  const auto shift = hn::Set(d, top);
  hn::Vec<decltype(d)> total[kParts];
  for (int p = 0; p < kParts; ++p) total[p] = hn::Zero(d);
  for (int k = begin; k < end; k += kLanes) {
    for (int p = 0; p < kParts; ++p) {
      const auto w = exp_of(d, hn::Sub(hn::LoadU(d, score + k + p * n), shift));
      hn::StoreU(w, d, score + k + p * n);
      total[p] = hn::Add(total[p], w);
    }
  }
  A lane[kLanes];
  for (int p = 0; p < kParts; ++p) hn::StoreU(total[p], d, lane + p * n);
  sum = sum_lanes(lane);
}

// The keys of a split that one row sees, relative to the split's first key. Keys [begin, middle)
// are dense: their number is their cache row. Keys [middle, end) are extra: extra[`extra`] onwards.
struct Visible {
  int begin = 0;
  int middle = 0;
  int end = 0;
  int extra = 0;
};

inline Visible visible(const RowView& rows, int r, int base) {
  const auto cut = [base](int key) { return std::clamp(key - base, 0, kSplitKeys); };
  Visible v;
  v.begin = cut(rows.first_dense(r));
  v.middle = std::max(v.begin, cut(rows.dense_end[r]));
  v.end = v.middle;
  const int extras = rows.extra_end[r] - rows.first_extra(r);
  if (extras == 0) return v;
  const int first = rows.last_key(r) + 1 - extras;  // number of the first extra key
  const int from = cut(first);
  v.end = cut(rows.last_key(r) + 1);
  v.extra = rows.first_extra(r) + from + base - first;
  if (v.begin == v.middle) v.begin = v.middle = std::min(from, v.end);
  return v;
}

// Addresses of the keys and values of kSplitKeys consecutive cache rows of one sequence.
template <class A, class K>
class Window {
 public:
  // packed: [head_dim, kSplitKeys], used for keys if a page does not hold whole vectors.
  Window(const SplitTask<A, K>& task, K* packed)
      : kv_(task.kv),
        head_(task.kv_head),
        table_(task.rows->pages + task.rows->table[task.first_row]),
        packed_(packed) {}

  // Selects cache rows base + [from, to). REQUIRES: base is a multiple of kLanes. Key vectors start
  // at multiples of the vector size.
  void set(int base, int from, int to) {
    constexpr int n = kVector<A>;
    const bool in_place = kv_.page_rows % n == 0;
    stride_ = in_place ? kv_.page_rows : kSplitKeys;
    for (int k = from; k < to;) {
      const int64_t page = table_[(base + k) / kv_.page_rows];
      const int slot = (base + k) % kv_.page_rows;
      const int end = std::min(to, k + kv_.page_rows - slot);
      const K* value = kv_.value(page, head_, slot);
      const K* key = kv_.key(page, head_, slot);
      if (in_place) {
        for (int v = k / n; v * n < end; ++v) key_[v] = key + (v * n - k);
      } else {
        for (int i = k; i < end; ++i) pack(key + (i - k), i);
      }
      for (; k < end; ++k, value += kv_.head_dim) value_[k] = value;
    }
    if (!in_place) {
      for (int v = from / n; v * n < to; ++v) key_[v] = packed_ + v * n;
    }
  }

  const K* const* keys() const { return key_; }
  const K* const* values() const { return value_; }
  int64_t stride() const { return stride_; }

 private:
  void pack(const K* key, int at) {
    for (int i = 0; i < kv_.head_dim; ++i) {
      packed_[int64_t{i} * kSplitKeys + at] = key[int64_t{i} * kv_.page_rows];
    }
  }

  const PagedKv<const K>& kv_;
  int head_;
  const int32_t* table_;
  K* packed_;
  int64_t stride_ = 0;
  const K* key_[kSplitKeys / kVector<A>];
  const K* value_[kSplitKeys];
};

// Up to kMaxQueries queries of a split: heads [first_head, first_head + heads) of rows [first,
// end). It is either part of one row's heads or all heads of several rows.
template <class A, class K>
class Tile {
 public:
  Tile(const SplitTask<A, K>& task, int first, int end, int first_head, int heads)
      : t_(task),
        first_(first),
        end_(end),
        first_head_(first_head),
        heads_(heads),
        base_(task.split * kSplitKeys),
        head_dim_(task.kv.head_dim),
        width_(SplitState::width(head_dim_)) {
    const int64_t query = int64_t{first - task.first_row} * task.group + first_head;
    q_ = task.q + query * head_dim_;
    state_ = task.state + query * width_;
  }

  // dense: the split's rows; branch: scratch; first: this is the first read of the split, so
  // prefetch.
  void attend(const Window<A, K>& dense, Window<A, K>& branch, bool first) {
    find_ranges();
    first ? score_dense<true>(dense) : score_dense<false>(dense);
    for (int k = from_; first && k < std::min(to_, from_ + kRowsAhead); ++k) {
      for (int i = 0; i < head_dim_; i += kVector<A>) fetch_ahead<1, A>(dense.values()[k] + i);
    }
    score_extras(branch);
    for (int r = first_; r < end_; ++r) {
      clear(r);
      if (seen(r).begin < seen(r).end) softmax(r);
    }
    // Each row adds its keys in ascending order. The range visible to all rows is read once.
    const bool shared = shared_from_ < shared_to_;
    for (int r = first_; r < end_; ++r) {
      weigh_row(dense, r, seen(r).begin, shared ? shared_from_ : seen(r).middle);
    }
    if (shared) {
      const int queries = (end_ - first_) * heads_;
      const auto f = first ? weigh<true, A, K> : weigh<false, A, K>;
      f(dense.values(), shared_from_, shared_to_, score_, queries, state_, width_, head_dim_);
    }
    for (int r = first_; r < end_; ++r) {
      const Visible& v = seen(r);
      if (shared) weigh_row(dense, r, shared_to_, v.middle);
      if (v.middle < v.end) weigh_extras(r);
    }
  }

 private:
  const Visible& seen(int r) const { return seen_[r - first_]; }
  int query(int r) const { return (r - first_) * heads_; }
  // Cache row of key k of the split. REQUIRES: k is one of row r's extra keys.
  int extra(int r, int k) const { return t_.rows->extra[seen(r).extra + k - seen(r).middle]; }
  A* score_of(int query) { return score_ + query * kScoreStride; }
  A* state_of(int query) { return state_ + query * width_; }

  void find_ranges() {
    for (int r = first_; r < end_; ++r) {
      const Visible& v = seen_[r - first_] = visible(*t_.rows, r, base_);
      if (v.begin < v.middle) {
        from_ = std::min(from_, v.begin);
        to_ = std::max(to_, v.middle);
      }
      shared_from_ = std::max(shared_from_, v.begin);
      shared_to_ = std::min(shared_to_, v.middle);
      if (v.middle < v.end) {  // extra rows are ascending
        from_extra_ = std::min(from_extra_, extra(r, v.middle));
        to_extra_ = std::max(to_extra_, extra(r, v.end - 1) + 1);
      }
    }
  }

  template <bool kAhead>
  void score_dense(const Window<A, K>& dense) {
    if (from_ >= to_) return;
    constexpr int n = kVector<A>;
    const int v = from_ / n;
    score<kAhead>(dense.keys() + v, (to_ + n - 1) / n - v, dense.stride(), q_,
                  (end_ - first_) * heads_, head_dim_, score_ + v * n);
  }

  // Rows of a tree are adjacent in the cache, and most are visible to some row of the tile. Scores
  // are computed for all queries against all of them, and each row selects its own.
  void score_extras(Window<A, K>& branch) {
    constexpr int n = kVector<A>;
    for (int first = from_extra_ / kLanes * kLanes; first < to_extra_; first += kSplitKeys) {
      const int from = std::max(0, from_extra_ - first);
      const int to = std::min(kSplitKeys, to_extra_ - first);
      branch.set(first, from, to);
      const int v = from / n;
      score<false>(branch.keys() + v, (to + n - 1) / n - v, branch.stride(), q_,
                   (end_ - first_) * heads_, head_dim_, extra_score_ + v * n);
      for (int r = first_; r < end_; ++r) {
        for (int k = seen(r).middle; k < seen(r).end; ++k) {
          const int at = extra(r, k) - first;
          if (at < 0 || at >= kSplitKeys) continue;
          for (int j = query(r); j < query(r) + heads_; ++j) {
            score_of(j)[k] = extra_score_[j * kScoreStride + at];
          }
        }
      }
    }
  }

  void weigh_extras(int r) {
    const PagedKv<const K>& kv = t_.kv;
    const int32_t* table = t_.rows->pages + t_.rows->table[r];
    const K* value[kSplitKeys];
    const Visible& v = seen(r);
    for (int k = v.middle; k < v.end; ++k) {
      const int row = extra(r, k);
      value[k] = kv.value(table[row / kv.page_rows], t_.kv_head, row % kv.page_rows);
    }
    weigh<false>(value, v.middle, v.end, score_of(query(r)), heads_, state_of(query(r)), width_,
                 head_dim_);
  }

  void clear(int r) {
    std::fill_n(state_of(query(r)), heads_ * width_, A{0});
    for (int j = query(r); j < query(r) + heads_; ++j) {
      state_of(j)[SplitState::top(head_dim_)] = -std::numeric_limits<A>::infinity();
    }
  }

  // Adds the distance bias and replaces scores by softmax weights.
  void softmax(int r) {
    const Visible& v = seen(r);
    const DistanceBias<A>& bias = t_.bias;
    for (int h = 0; h < heads_; ++h) {
      A* s = score_of(query(r) + h);
      if (bias.table != nullptr) {
        const A* by_distance =
            bias.table + int64_t{first_head_ + h} * (bias.before + 1 + bias.after) + bias.before;
        const int to_distance = base_ - t_.rows->position[r];
        for (int k = v.begin; k < v.end; ++k) {
          s[k] += by_distance[std::clamp(k + to_distance, -bias.before, bias.after)];
        }
      }
      A* state = state_of(query(r) + h);
      to_weights(s, v.begin, v.end, state[SplitState::top(head_dim_)],
                 state[SplitState::sum(head_dim_)]);
    }
  }

  void weigh_row(const Window<A, K>& window, int r, int from, int to) {
    weigh<false>(window.values(), from, to, score_of(query(r)), heads_, state_of(query(r)), width_,
                 head_dim_);
  }

  const SplitTask<A, K>& t_;
  int first_, end_, first_head_, heads_, base_, head_dim_;
  int64_t width_;
  const A* q_;
  A* state_;
  Visible seen_[kMaxQueries];                         // per row
  int from_ = kSplitKeys, to_ = 0;                    // dense keys visible to some row
  int shared_from_ = 0;                               // dense keys
  int shared_to_ = kSplitKeys;                        // visible to all rows
  int from_extra_ = std::numeric_limits<int>::max();  // extra keys (cache rows) visible to some row
  int to_extra_ = 0;
  alignas(64) A score_[kMaxQueries * kScoreStride];
  alignas(64) A extra_score_[kMaxQueries * kScoreStride];  // by cache row
};

template <class A, class K>
void attend(const SplitTask<A, K>& t) {
  int from = kSplitKeys, to = 0;
  for (int r = t.first_row; r < t.end_row; ++r) {
    const Visible v = visible(*t.rows, r, t.split * kSplitKeys);
    if (v.begin == v.middle) continue;
    from = std::min(from, v.begin);
    to = std::max(to, v.middle);
  }
  Window<A, K> dense(t, t.packed);
  Window<A, K> branch(t, t.packed + int64_t{t.kv.head_dim} * kSplitKeys);
  dense.set(t.split * kSplitKeys, from, to);
  const int parts = (t.group + kMaxQueries - 1) / kMaxQueries;
  const int heads = (t.group + parts - 1) / parts;
  const int rows = parts > 1 ? 1 : kMaxQueries / t.group;
  for (int r = t.first_row; r < t.end_row; r += rows) {
    for (int h = 0; h < t.group; h += heads) {
      Tile<A, K>(t, r, std::min(r + rows, t.end_row), h, std::min(heads, t.group - h))
          .attend(dense, branch, r == t.first_row && h == 0);
    }
  }
}

void attend_float(const SplitTask<float, float>& task) { attend(task); }
void attend_half(const SplitTask<float, BFloat16>& task) { attend(task); }
void attend_double(const SplitTask<double, double>& task) { attend(task); }

}  // namespace
}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(attend_float);
HWY_EXPORT(attend_half);
HWY_EXPORT(attend_double);

void attend_split(const SplitTask<float, float>& t) { HWY_DYNAMIC_DISPATCH(attend_float)(t); }
void attend_split(const SplitTask<float, BFloat16>& t) { HWY_DYNAMIC_DISPATCH(attend_half)(t); }
void attend_split(const SplitTask<double, double>& t) { HWY_DYNAMIC_DISPATCH(attend_double)(t); }

}  // namespace tandem::cpu
#endif
