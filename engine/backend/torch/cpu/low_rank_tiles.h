// The vectorized inner part of low_rank.h, compiled once per target: some ranks or columns of a few
// rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/torch/cpu/packed_matrix.h"

namespace tandem::cpu {

// Ranks of A x. T: float, or double for kDouble.
template <class T>
struct RanksTask {
  WeightType type = WeightType::kFloat;
  const std::byte* a = nullptr;  // [ranks, blocks] as LowRankLayer::a
  int64_t blocks = 0;
  int64_t first = 0, end = 0;   // the ranks to compute
  const T* const* x = nullptr;  // [rows] inputs, with zeros up to the end of the last block
  int64_t rows = 0;
  T* to = nullptr;  // [rows, stride]
  int64_t stride = 0;
};
void low_rank_ranks(const RanksTask<float>& task);
void low_rank_ranks(const RanksTask<double>& task);

// Columns of scale * B r.
template <class T>
struct ColumnsTask {
  WeightType type = WeightType::kFloat;
  const std::byte* b = nullptr;  // [panels, rank] as LowRankLayer::Matrix::b
  int64_t rank = 0;
  int64_t columns = 0;
  int64_t first = 0, end = 0;  // the panels to compute
  const T* ranks = nullptr;    // [rows, stride]
  int64_t stride = 0;
  T scale = 1;
  T* const* to = nullptr;  // [rows] columns
  int64_t rows = 0;
  bool add = true;  // false: the products replace the columns
  // Memory that is read next: up to `stop` behind the panels, then from `then` on; or null.
  const std::byte* stop = nullptr;
  const std::byte* then = nullptr;
};
void low_rank_columns(const ColumnsTask<float>& task);
void low_rank_columns(const ColumnsTask<double>& task);

}  // namespace tandem::cpu
