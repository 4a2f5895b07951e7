// Low-rank additions to rows with LoRA adapters: y += scale * B (A x), each row with its own A and
// B. After Punica's BGMV (arXiv 2310.18547) and S-LoRA (arXiv 2311.03285): a launch computes A x of
// every row, a second one multiplies by B and adds.
//
// Adapters are fp32 (fp64 with fp64 rows), which holds the numbers of any file: their additions
// differ from the CPU's by rounding of the rows alone. In 16 bits, as on CPUs, they would take half
// the memory. A step would gain little from that: an adapter of rank 16 has about one percent of
// the model's bytes, and small launches dominate.
//
// Summation order of a rank: thread t adds the products of inputs [8 t, 8 t + 8), then of those
// 2,048 further on, in ascending order; warp_sum() adds the threads of a warp; the warps' sums are
// added in ascending order. Of a column: ranks in ascending order. Every step is one fused
// multiplication and addition. A row thus has the same bits in any batch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/lora_view.h"

namespace tandem::cuda {

inline constexpr int kBlockRanks = 4;    // of a thread block of the first launch
inline constexpr int kThreadInputs = 8;  // consecutive inputs of a thread
// With more rows than kSingleRows, a thread block has several. Those with the same adapter then
// share its numbers.
inline constexpr int kSingleRows = 64;
inline constexpr int kRowsTogether = 8;

template <class T>
struct LoraArguments {
  using R = Residual<T>;
  using Matrices = LoraMatrices<Ptr<const R>>;

  Ptr<const Ptr<const Matrices>> adapter = nullptr;  // [rows] as LoraView
  int64_t layer = 0;                                 // of each adapter
  int rows = 0;
  Ptr<const T> x = nullptr;  // [rows, in]
  int64_t in = 0;
  Ptr<R> ranks = nullptr;  // [rows, most_ranks] scratch
  int most_ranks = 0;      // at least those of each adapter
  int64_t columns = 0;
  bool add = true;  // false: the additions replace the rows that have an adapter
};

// The rows of a thread block, by runs of one adapter. f(matrices, row, n): rows [row, row + n)
template <class T, int kRows, class F>
__device__ void for_runs(const LoraArguments<T>& a, const F& f) {
  const int begin = static_cast<int>(blockIdx.y) * kRows;
  const int end = min(begin + kRows, a.rows);
  for (int row = begin; row < end;) {
    Ptr<const typename LoraArguments<T>::Matrices> own = a.adapter[row];
    int next = row + 1;
    while (next < end && (mutated(Mutant::kLoraFirstRow) || a.adapter[next] == own)) ++next;
    if (mutated(Mutant::kLoraEveryRow) && own == nullptr && row > 0) own = a.adapter[row - 1];
    if (!(own == nullptr)) f(own[mutated(Mutant::kLoraFirstLayer) ? 0 : a.layer], row, next - row);
    row = next;
  }
}

// Inputs [k, k + 8) of a row; 0 behind its end.
template <class R, class T>
__device__ void read_inputs(R (&to)[kThreadInputs], const Ptr<const T>& row, int64_t k,
                            int64_t in) {
  if constexpr (!std::is_same_v<T, double>) {
    if (in % kThreadInputs == 0) {
      constexpr int kWords = sizeof(T) == 4 ? 2 : 1;
      uint32_t bits[4 * kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const uint4 w = words_of<uint4>(row)[k / kThreadInputs * kWords + i];
        bits[4 * i] = w.x, bits[4 * i + 1] = w.y, bits[4 * i + 2] = w.z, bits[4 * i + 3] = w.w;
      }
#pragma unroll
      for (int i = 0; i < kThreadInputs; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          to[i] = __uint_as_float(bits[i]);
        } else {
          T x;
          x.bits = static_cast<uint16_t>(bits[i / 2] >> (i % 2 * 16));
          to[i] = static_cast<float>(x);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kThreadInputs; ++i) {
    const bool is_there = mutated(Mutant::kLoraTailCut) ? k + kThreadInputs <= in : k + i < in;
    to[i] = is_there || mutated(Mutant::kLoraTail) ? static_cast<R>(row[k + i]) : R(0);
  }
}

// A thread block computes kBlockRanks ranks of kRows rows.
template <class T, int kRows>
__global__ void lora_ranks_kernel(const __grid_constant__ LoraArguments<T> a) {
  using R = Residual<T>;
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kSums = kRows * kBlockRanks;
  __shared__ SharedArray<R, kWarps * kSums> sums;
  begin_launch();
  const int first = static_cast<int>(blockIdx.x) * kBlockRanks;
  for_runs<T, kRows>(a, [&](const typename LoraArguments<T>::Matrices& m, int row, int n) {
    const int ranks = m.rank_end[kMostLoraMatrices - 1];
    if (first >= ranks) return;
    if (mutated(Mutant::kLoraRanksCut) && first + kBlockRanks > ranks) return;
    R c[kRows][kBlockRanks] = {};
    for (int64_t k = int64_t{threadIdx.x} * kThreadInputs; k < a.in;
         k += int64_t{kThreads} * kThreadInputs) {
      R w[kBlockRanks][kThreadInputs] = {};
#pragma unroll
      for (int j = 0; j < kBlockRanks; ++j) {
        if (first + j < ranks) read_inputs(w[j], m.a + (first + j) * a.in, k, a.in);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= n) continue;
        R x[kThreadInputs];
        read_inputs(x, a.x + (row + r) * a.in, k, a.in);
#pragma unroll
        for (int j = 0; j < kBlockRanks; ++j) {
#pragma unroll
          for (int i = 0; i < kThreadInputs; ++i) c[r][j] = fma(x[i], w[j][i], c[r][j]);
        }
      }
    }
    // The sums of the run before have been read.
    if (!mutated(Mutant::kLoraSumsOverlap)) __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) continue;
#pragma unroll
      for (int j = 0; j < kBlockRanks; ++j) {
        const R sum = warp_sum(c[r][j]);
        if (threadIdx.x % kWarp == 0) sums[warp * kSums + r * kBlockRanks + j] = sum;
      }
    }
    if (!mutated(Mutant::kLoraWithoutBarrier)) __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    const int rank = first + i % kBlockRanks;
    if (i >= n * kBlockRanks || rank >= ranks) return;
    R sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * kSums + i];
    const int stride = mutated(Mutant::kLoraRankStride) ? ranks : a.most_ranks;
    a.ranks[int64_t{row + i / kBlockRanks} * stride + rank] = sum;
  });
}

// A thread block adds kThreads columns of kRows rows, a thread one column.
template <class T, class To, int kRows>
__global__ void lora_columns_kernel(const __grid_constant__ LoraArguments<T> a, Ptr<To> to) {
  using R = Residual<T>;
  begin_launch();
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= a.columns && !mutated(Mutant::kLoraColumns)) return;
  for_runs<T, kRows>(a, [&](const typename LoraArguments<T>::Matrices& m, int row, int n) {
    const int i = column < m.column_end[0] ? 0 : column < m.column_end[1] ? 1 : 2;
    const int64_t first = i == 0 ? 0 : m.column_end[i - 1];
    const int64_t width = m.column_end[i] - first;
    const int first_rank = i == 0 || mutated(Mutant::kLoraFirstRanks) ? 0 : m.rank_end[i - 1];
    const int rank = m.rank_end[i] - (i == 0 ? 0 : m.rank_end[i - 1]);
    const Ptr<const R> b = m.b[i];
    const R scale = static_cast<R>(m.scale[mutated(Mutant::kLoraFirstScale) ? 0 : i]);
    R c[kRows] = {};
    if (!(b == nullptr)) {
      const int end = mutated(Mutant::kLoraLastRank) ? rank - 1 : rank;
#pragma unroll 4
      for (int j = 0; j < end; ++j) {
        const R w = b[j * width + column - first];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r >= n) continue;
          c[r] = fma(R(a.ranks[int64_t{row + r} * a.most_ranks + first_rank + j]), w, c[r]);
        }
      }
    } else if (a.add || mutated(Mutant::kLoraNotCleared)) {
      return;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) continue;
      const int64_t at = int64_t{row + r} * a.columns + column;
      const R y = a.add && !mutated(Mutant::kLoraStored) ? static_cast<R>(to[at]) : R(0);
      to[at] = static_cast<To>(fma(scale, c[r], y));
    }
  });
}

template <class T, class To, int kRows>
void launch_lora(Stream stream, const LoraArguments<T>& a, Ptr<To> to) {
  const int64_t tiles = (a.rows + kRows - 1) / kRows;
  launch(stream, lora_ranks_kernel<T, kRows>,
         {kThreads, (a.most_ranks + kBlockRanks - 1) / kBlockRanks, tiles}, a);
  launch(stream, lora_columns_kernel<T, To, kRows>,
         {kThreads, (a.columns + kThreads - 1) / kThreads, tiles}, a, to);
}

// to: [rows, columns]; a row without an adapter is neither read nor written. To: T or Residual<T>
template <class T, class To>
void add_lora(Stream stream, const LoraArguments<T>& a, Ptr<To> to) {
  if (a.rows <= kSingleRows) {
    launch_lora<T, To, 1>(stream, a, to);
  } else {
    launch_lora<T, To, kRowsTogether>(stream, a, to);
  }
}

// One thread block per row.
template <class T>
__global__ void add_rows_kernel(Ptr<T> to, Ptr<const Residual<T>> sums, Ptr<const int32_t> row,
                                int64_t width) {
  begin_launch();
  const int64_t r = blockIdx.x;
  const int64_t own = mutated(Mutant::kAddedInOrder) ? r : int64_t{row[r]};
  if (row[r] < 0) return;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[r * width + i] =
        static_cast<T>(static_cast<Residual<T>>(to[r * width + i]) + sums[own * width + i]);
  }
}

// to[r] += sums[row[r]] for rows with row[r] >= 0. to: [rows, width], sums: [.., width]
template <class T>
void add_rows(Stream stream, Ptr<T> to, Ptr<const Residual<T>> sums, Ptr<const int32_t> row,
              int64_t rows, int64_t width) {
  launch(stream, add_rows_kernel<T>, {kThreads, rows}, to, sums, row, width);
}

}  // namespace tandem::cuda
