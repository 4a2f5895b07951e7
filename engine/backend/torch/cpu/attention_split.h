// One split of the context: what the vector code of attention.h does.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cpu/attention.h"

namespace tandem::cpu {

// A softmax over some keys that is not divided by its sum yet: values weighted with exp(score -
// top), then `top`, then the sum of the weights, which is 0 where no key was seen.
struct SplitState {
  static int64_t top(int head_dim) { return (int64_t{head_dim} + kLanes - 1) / kLanes * kLanes; }
  static int64_t sum(int head_dim) { return top(head_dim) + 1; }
  static int64_t width(int head_dim) { return top(head_dim) + kLanes; }
};

// Rows [first_row, end_row) of one sequence, which share a page table, with one kv head and the
// keys [split * kSplitKeys, (split + 1) * kSplitKeys) of the context.
template <class A, class K>
struct SplitTask {
  const RowView* rows = nullptr;
  int first_row = 0;
  int end_row = 0;
  int group = 0;  // query heads of the kv head
  int kv_head = 0;
  int split = 0;
  PagedKv<const K> kv;
  DistanceBias<A> bias;  // its table begins with the group's first head
  const A* q = nullptr;  // [rows, group, head_dim], scaled
  A* state = nullptr;    // [rows, group, SplitState::width]
  K* packed = nullptr;   // scratch: [2, head_dim, kSplitKeys]
};

void attend_split(const SplitTask<float, float>& task);
void attend_split(const SplitTask<float, BFloat16>& task);
void attend_split(const SplitTask<double, double>& task);

}  // namespace tandem::cpu
