// Epilogue of products of a few rows: adds the warps' sums in order, then applies bias, LoRA
// additions, activation, gate, addition or rounding.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cuda {

inline constexpr int kMostProductRows = 16;
inline constexpr int kProductThreads = kThreads;  // as for norms: same order of summation
inline constexpr int kProductWarps = kProductThreads / kWarp;
inline constexpr int kPrefetchLanes = 8;  // lanes that share 128 bytes of L2
inline constexpr int kTileOuts = 16;
inline constexpr int kTileRows = 8;

// Epilogue of one thread block: tiles of kTiles * 16 outs x kRowTiles * 8 rows. A: the launch's
// arguments, such as ProductArguments.
template <class A, int kTiles, int kRowTiles>
class ProductEnd {
 public:
  static constexpr int kOuts = kTiles * kTileOuts;
  static constexpr int kRows = kRowTiles * kTileRows;
  // Shared memory, double-buffered over groups: [2][warps][rows][outs].
  using Sums = SharedArray<float, 2 * kProductWarps * kOuts * kRows>;

  __device__ ProductEnd(const A& a, Sums& sums)
      : a_(a), sums_(sums), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {}

  // c: the calling warp's accumulators of a group of tiles
  __device__ void finish(int64_t group, const float (&c)[kTiles][kRowTiles][4]) {
    leave(c, turn_);
    if (!mutated(Mutant::kProductWithoutBarrier)) __syncthreads();
    put_all(group, turn_);
    if (!mutated(Mutant::kProductOneBuffer)) turn_ = 1 - turn_;
  }

 private:
  __device__ static int place(int turn, int warp, int row, int out) {
    return ((turn * kProductWarps + warp) * kRows + row) * kOuts + out;
  }

  // Stores the warp's accumulators. Register i of lane 4g + t: row g + 8 (i / 2), column 2t + i %
  // 2.
  __device__ void leave(const float (&c)[kTiles][kRowTiles][4], int turn) {
#pragma unroll
    for (int n = 0; n < kTiles * kRowTiles * 4; ++n) {
      const int i = n % 4, tile = n / 4 % kRowTiles, of = n / 4 / kRowTiles;
      const int row = tile * kTileRows + lane_ % 4 * 2 + i % 2;
      sums_[place(turn, warp_, row, of * kTileOuts + lane_ / 4 + i / 2 * 8)] = c[of][tile][i];
    }
  }

  __device__ void put_all(int64_t group, int turn) {
    const bool gated = a_.then == ProductThen::kGate;
    const int outs = gated ? kTileOuts : kOuts;
    const int64_t width = a_.shape.width();
    const int64_t stride = mutated(Mutant::kBlocksStride) ? width : a_.row_stride();
    for (int i = threadIdx.x; i < outs * kRows; i += kProductThreads) {
      const int row = i / outs;
      const int out = i % outs;
      const int64_t column = group * outs + out;
      if (row >= a_.rows) return;
      if (column >= a_.columns() && !mutated(Mutant::kProductColumns)) continue;
      float y = sum(turn, row, out) + bias(column);
      if (gated) y = with_addition(y, row, column);
      if (a_.then == ProductThen::kActivate || gated) y = activated(y, a_.activation);
      if (gated) {
        const int64_t other = mutated(Mutant::kProductBias) ? column : width + column;
        y *= with_addition(sum(turn, row, kTileOuts + out) + bias(other), row, width + column);
      }
      put(row * stride + column, y);
    }
  }

  __device__ float sum(int turn, int row, int out) {
    float sum = 0;
    for (int warp = 0; warp < kProductWarps; ++warp) {
      const int w = mutated(Mutant::kProductOrder) ? kProductWarps - 1 - warp : warp;
      sum += sums_[place(turn, w, row, out)];
    }
    return sum;
  }

  __device__ float bias(int64_t out) const {
    return a_.bias == nullptr ? 0.0f : static_cast<float>(a_.bias[out]);
  }

  // Unchanged, also the sign of zero, for rows without an addition.
  __device__ float with_addition(float y, int row, int64_t out) const {
    if (a_.added == nullptr) return y;
    const int64_t from = a_.added_row[mutated(Mutant::kProductAdded) ? 0 : row];
    return from < 0 ? y : y + a_.added[from * 2 * a_.shape.width() + out];
  }

  __device__ void put(int64_t at, float y) {
    if (a_.then == ProductThen::kAdd) {
      a_.sums[at] += y;
    } else if (a_.sums == nullptr) {
      a_.out[at] = static_cast<typename A::Number>(y);
    } else {
      a_.sums[at] = y;
    }
  }

  const A& a_;
  Sums& sums_;
  const int warp_, lane_;
  int turn_ = 0;
};

}  // namespace tandem::cuda
