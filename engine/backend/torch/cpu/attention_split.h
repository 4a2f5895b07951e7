// The vectorized inner part of attention.h: one split of the context.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/attention.h"

namespace tandem::cpu {

// Unnormalized softmax over a set of keys: sum of values weighted by exp(score - top) [head_dim,
// padded], then `top`, then the sum of the weights. The sum is 0 if no key was visible.
struct SplitState {
  static int64_t top(int head_dim) { return (int64_t{head_dim} + kLanes - 1) / kLanes * kLanes; }
  static int64_t sum(int head_dim) { return top(head_dim) + 1; }
  static int64_t width(int head_dim) { return top(head_dim) + kLanes; }
};

// Rows [first_row, end_row) of one sequence (same page table), one kv head, and the keys [split *
// kSplitKeys, (split + 1) * kSplitKeys) of the context.
template <class A, class K>
struct SplitTask {
  const RowView* rows = nullptr;
  int first_row = 0;
  int end_row = 0;
  int group = 0;  // query heads per kv head
  int kv_head = 0;
  int split = 0;
  PagedKv<const K> kv;
  DistanceBias<A> bias;  // its table starts at the group's first head
  const A* q = nullptr;  // [rows, group, head_dim], already scaled
  A* state = nullptr;    // [rows, group, SplitState::width]
  K* packed = nullptr;   // scratch: [2, head_dim, kSplitKeys]
};

void attend_split(const SplitTask<float, float>& task);
void attend_split(const SplitTask<float, BFloat16>& task);
void attend_split(const SplitTask<double, double>& task);

}  // namespace tandem::cpu
