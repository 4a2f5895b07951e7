// Attention over pages on the CPU: the readable reference for faster ones.
//
// Each row goes over the keys that it sees, in place in their pages, in ascending order of cache
// rows: scores, then a softmax over them in two passes, then the weighted sum of values. The order
// depends only on which keys are seen. So a row has the same bits alone or in a batch, in a chunk
// or by itself, and on a branch of a tree or in a chain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/elementwise.h"
#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cpu {

inline int visible_keys(const RowView& rows, int64_t r) {
  return rows.dense_end[r] - rows.first_key[r] + rows.extra_end[r] - rows.extra_begin[r];
}

// Calls f(i, at, n) for runs of keys that lie one after the other: the i-th to (i + n - 1)-th of
// the keys that row r sees lie at `at` rows into the pages of one kv head.
template <class F>
void for_each_run(const RowView& rows, int64_t r, int kv_heads, int kv_head, const F& f) {
  const int32_t* table = rows.pages + rows.table[r];
  const int page_rows = rows.page_rows;
  const auto place = [&](int cache_row) {
    const int64_t page = table[cache_row / page_rows];
    return (page * kv_heads + kv_head) * page_rows + cache_row % page_rows;
  };
  int i = 0;
  for (int c = rows.first_key[r]; c < rows.dense_end[r];) {
    const int n = std::min(page_rows - c % page_rows, rows.dense_end[r] - c);
    f(i, place(c), n);
    i += n;
    c += n;
  }
  for (int e = rows.extra_begin[r]; e < rows.extra_end[r]; ++e) f(i++, place(rows.extra[e]), 1);
}

// Softmax of n scores in place, not yet divided by their sum, which is returned.
template <class A>
A exp_and_sum(A* score, int n) {
  A top = score[0];
  for (int i = 1; i < n; ++i) top = score[i] > top ? score[i] : top;
  A lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      score[i + l] = exp_of(score[i + l] - top);
      lane[l] += score[i + l];
    }
  }
  for (int l = 0; i < n; ++i, ++l) {
    score[i] = exp_of(score[i] - top);
    lane[l] += score[i];
  }
  return sum_lanes(lane);
}

// One row and one kv head, that is the group of query heads which share it.
// q, out: [group, head_dim]; score: scratch [group, visible]; sum: scratch [group, head_dim]
template <class T, class A>
void attend_row(T* out, const T* q, const RowView& rows, int64_t r, const Heads<T>& h, int kv_head,
                A scale, std::vector<A>& scratch) {
  const int group = h.heads / h.kv_heads;
  const int d = h.head_dim;
  const int n = visible_keys(rows, r);
  scratch.resize(static_cast<size_t>(group) * static_cast<size_t>(n + 2 * d));
  A* score = scratch.data();
  A* sum = score + int64_t{group} * n;
  A* query = sum + int64_t{group} * d;
  for (int i = 0; i < group * d; ++i) query[i] = static_cast<A>(q[i]) * scale;
  for_each_run(rows, r, h.kv_heads, kv_head, [&](int first, int64_t at, int run) {
    const T* key = h.keys + at * d;
    for (int i = 0; i < run; ++i, key += d) {
      for (int g = 0; g < group; ++g) score[g * n + first + i] = dot<A>(query + g * d, key, d);
    }
  });
  std::fill_n(sum, group * d, A{0});
  for (int g = 0; g < group; ++g) {
    const A total = exp_and_sum(score + int64_t{g} * n, n);
    for (int i = 0; i < n; ++i) score[g * n + i] /= total;
  }
  for_each_run(rows, r, h.kv_heads, kv_head, [&](int first, int64_t at, int run) {
    const T* value = h.values + at * d;
    for (int i = 0; i < run; ++i, value += d) {
      for (int g = 0; g < group; ++g) {
        const A p = score[g * n + first + i];
        A* s = sum + g * d;
        for (int c = 0; c < d; ++c) s[c] += p * static_cast<A>(value[c]);
      }
    }
  });
  for (int i = 0; i < group * d; ++i) out[i] = static_cast<T>(sum[i]);
}

// qkv: [rows, (heads + 2 kv_heads) * head_dim], queries rotated; the rows' own keys and values are
// in their pages. out: [rows, heads * head_dim]
template <class T, class A>
void attention(T* out, const T* qkv, const RowView& rows, const Heads<T>& h, A scale) {
  const int group_dim = h.heads / h.kv_heads * h.head_dim;
  const int64_t q_width = int64_t{h.heads + 2 * h.kv_heads} * h.head_dim;
  const int64_t out_width = int64_t{h.heads} * h.head_dim;
  int64_t keys = 0;
  for (int64_t r = 0; r < rows.rows; ++r) keys += visible_keys(rows, r);
  const int64_t task_cost = std::max<int64_t>(1, keys * group_dim / std::max(1, rows.rows));
  parallel_for(int64_t{rows.rows} * h.kv_heads, std::max<int64_t>(1, 16384 / task_cost),
               [&](int64_t begin, int64_t end) {
                 thread_local std::vector<A> scratch;
                 for (int64_t t = begin; t < end; ++t) {
                   const int64_t r = t / h.kv_heads;
                   const auto head = static_cast<int>(t % h.kv_heads);
                   attend_row(out + r * out_width + head * group_dim,
                              qkv + r * q_width + head * group_dim, rows, r, h, head, scale,
                              scratch);
                 }
               });
}

}  // namespace tandem::cpu
