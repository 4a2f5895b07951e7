// Element-wise kernels between the products. CUDA counterpart of cpu/elementwise.h.
//
// One thread block per row, or per row and some heads. Embedding, copies and norms issue several
// loads of a thread before they use the first. A row's result depends on that row only.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/kinds.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cuda {

inline constexpr int kThreads = 256;  // per thread block, in this file
inline constexpr int kAtOnce = 16;    // loads of a thread that are in flight together

// For a thread's elements i of a row: store(i, load(i)).
template <class R, class Load, class Store>
__device__ void for_own_elements(int64_t width, const Load& load, const Store& store) {
  for (int64_t first = threadIdx.x; first < width; first += kThreads * kAtOnce) {
    R x[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t i = first + u * kThreads;
      if (i < width) x[u] = load(i);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t i = first + u * kThreads;
      if (i < width) store(i, x[u]);
    }
  }
}

// One thread block per row.
template <class T, class R>
__global__ void embed_kernel(Ptr<R> x, Ptr<const T> table, Ptr<const int32_t> token,
                             int64_t width) {
  begin_launch();
  const int64_t r = blockIdx.x;
  if (token[r] < 0 && !mutated(Mutant::kEmbedAdapters)) return;
  const Ptr<const T> from = table + token[r] * width;
  for_own_elements<T>(
      width, [&](int64_t i) { return T(from[i]); },
      [&](int64_t i, T value) { x[r * width + i] = static_cast<R>(value); });
}

// x[r] = table[token[r]] for rows with token[r] >= 0. x: [rows, width], table: [vocab, width]
template <class T>
void embed(Stream stream, Ptr<Residual<T>> x, Ptr<const T> table, Ptr<const int32_t> token,
           int64_t rows, int64_t width) {
  launch(stream, embed_kernel<T, Residual<T>>, {kThreads, rows}, x, table, token, width);
}

// One thread block per row.
template <class Word>
__global__ void copy_rows_kernel(Ptr<Word> to, Ptr<const int64_t> to_index, Ptr<const Word> from,
                                 Ptr<const int64_t> from_index, int64_t words) {
  begin_launch();
  const int64_t i = blockIdx.x;
  const Ptr<Word> t = to + (to_index == nullptr ? i : to_index[i]) * words;
  const Ptr<const Word> f = from + (from_index == nullptr ? i : from_index[i]) * words;
  for_own_elements<Word>(
      words, [&](int64_t w) { return Word(f[w]); }, [&](int64_t w, Word x) { t[w] = x; });
}

// to[to_index[i]] = from[from_index[i]] for i < n. A null index means i. Rows are arrays of 32-bit
// words.
inline void copy_rows(Stream stream, Ptr<int32_t> to, Ptr<const int64_t> to_index,
                      Ptr<const int32_t> from, Ptr<const int64_t> from_index, int64_t n,
                      int64_t words) {
  launch(stream, copy_rows_kernel<int32_t>, {kThreads, n}, to, to_index, from, from_index, words);
}

// One thread block per row.
template <class R>
__global__ void scale_rows_kernel(Ptr<R> x, Ptr<const int32_t> token, R scale, int64_t width) {
  begin_launch();
  const int64_t r = blockIdx.x;
  if (token[r] < 0) return;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) x[r * width + i] *= scale;
}

// x[r] *= scale for rows with token[r] >= 0. x: [rows, width]
template <class R>
void scale_rows(Stream stream, Ptr<R> x, Ptr<const int32_t> token, double scale, int64_t rows,
                int64_t width) {
  launch(stream, scale_rows_kernel<R>, {kThreads, rows}, x, token, static_cast<R>(scale), width);
}

// One thread block per row.
template <class T, class R>
__global__ void add_positions_kernel(Ptr<R> x, Ptr<const T> table, Ptr<const int32_t> token,
                                     Ptr<const int32_t> position, int64_t width) {
  begin_launch();
  const int64_t r = blockIdx.x;
  if (token[r] < 0) return;
  const Ptr<const T> from = table + position[r] * width;
  for_own_elements<R>(
      width, [&](int64_t i) { return R(x[r * width + i]) + static_cast<R>(from[i]); },
      [&](int64_t i, R sum) { x[r * width + i] = sum; });
}

// x[r] += table[position[r]] for rows with token[r] >= 0. x: [rows, width], table: [positions,
// width]
template <class T>
void add_positions(Stream stream, Ptr<Residual<T>> x, Ptr<const T> table, Ptr<const int32_t> token,
                   Ptr<const int32_t> position, int64_t rows, int64_t width) {
  launch(stream, add_positions_kernel<T, Residual<T>>, {kThreads, rows}, x, table, token, position,
         width);
}

template <class R>
using BlockSums = SharedArray<R, kThreads / kWarp>;

// Sum of x over the thread block; all threads get the result.
template <class R>
__device__ R block_sum(R x, BlockSums<R>& sums) {
  x = warp_sum(x);
  if (!mutated(Mutant::kSumsOverlap)) __syncthreads();  // the previous sum has been read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  if (!mutated(Mutant::kSumWithoutBarrier)) __syncthreads();
  R total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) total += sums[w];
  return total;
}

template <class R>
struct NormArguments {
  bool layer = false;             // NormKind::kLayer; otherwise kRms
  Ptr<const R> weight = nullptr;  // [width]
  Ptr<const R> bias = nullptr;    // [width], for kLayer
  R eps = 0;
};

// A thread's elements of a row, in registers as far as kAtOnce elements go.
template <class From, class R>
class OwnElements {
 public:
  __device__ OwnElements(const Ptr<From>& from, int64_t width) : from_(from), width_(width) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t i = int64_t{threadIdx.x} + u * kThreads;
      x_[u] = i < width ? static_cast<R>(from[i]) : R(0);
    }
  }

  // f(u, i) for the elements i in ascending order; at(u, i) is the element.
  template <class F>
  __device__ void each(const F& f) const {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t i = int64_t{threadIdx.x} + u * kThreads;
      if (i < width_) f(u, i);
    }
    for (int64_t i = int64_t{threadIdx.x} + kAtOnce * kThreads; i < width_; i += kThreads) {
      f(kAtOnce, i);
    }
  }
  __device__ R at(int u, int64_t i) const { return u < kAtOnce ? x_[u] : static_cast<R>(from_[i]); }

 private:
  const Ptr<From>& from_;
  const int64_t width_;
  R x_[kAtOnce];
};

// A thread's partial sum of squared deviations from the mean, for block_sum().
template <class From, class R>
__device__ R own_squares(const OwnElements<From, R>& own, R mean) {
  R squares = 0;
  own.each([&](int u, int64_t i) {
    if (mutated(Mutant::kNormStride) && i >= kThreads) return;
    const R x = own.at(u, i) - (mutated(Mutant::kMeanNotTaken) ? R(0) : mean);
    squares += x * x;
  });
  return squares;
}
// Norm of one row by its thread block. add: adds to the output. `from` and `to` may be the same
// row.
template <bool add, class To, class From, class R>
__device__ void norm_row(Ptr<To> to, Ptr<From> from, const NormArguments<R>& norm, int64_t width) {
  __shared__ BlockSums<R> sums;
  const OwnElements<From, R> own(from, width);
  const OwnElements<const R, R> weight(norm.weight, width);
  const OwnElements<const R, R> bias(norm.bias, norm.layer ? width : 0);
  R mean = 0;
  if (norm.layer) {
    R sum = 0;
    own.each([&](int u, int64_t i) { sum += own.at(u, i); });
    mean = block_sum(sum, sums) / static_cast<R>(width);
  }
  const R squares = own_squares(own, mean);
  if (mutated(Mutant::kSumInOneWarp) && threadIdx.x >= kWarp) return;
  if (mutated(Mutant::kHalfShuffle) && threadIdx.x >= width) return;
  const R scale = R(1) / sqrt(block_sum(squares, sums) / static_cast<R>(width) + norm.eps);
  const auto put = [&](int u, int64_t i) {
    R y = weight.at(u, i) * ((own.at(u, i) - mean) * scale);
    if (norm.layer) y += bias.at(u, i);
    to[i] = static_cast<To>(add ? static_cast<R>(to[i]) + y : y);
  };
  own.each(put);
  if (mutated(Mutant::kNormWidth) && threadIdx.x == 0) put(kAtOnce, width);
}

// One thread block per row.
template <bool add, class To, class From, class R>
__global__ void norm_kernel(Ptr<To> to, Ptr<const From> from, NormArguments<R> norm,
                            int64_t width) {
  begin_launch();
  norm_row<add, To, const From, R>(to + blockIdx.x * width, from + blockIdx.x * width, norm, width);
}

// out = norm(x). out: [rows, width] of T, x: of Residual<T>.
template <class T>
void norm(Stream stream, Ptr<T> out, Ptr<const Residual<T>> x,
          const NormArguments<Residual<T>>& norm, int64_t rows, int64_t width) {
  using R = Residual<T>;
  launch(stream, norm_kernel<false, T, R, R>, {kThreads, rows}, out, x, norm, width);
}

// x += norm(y). y: [rows, width] of T, x: of Residual<T>.
template <class T>
void add_norm(Stream stream, Ptr<Residual<T>> x, Ptr<const T> y,
              const NormArguments<Residual<T>>& norm, int64_t rows, int64_t width) {
  using R = Residual<T>;
  launch(stream, norm_kernel<true, R, T, R>, {kThreads, rows}, x, y, norm, width);
}

// One thread block per row and head. x points to the first head.
template <class T, class R>
__global__ void norm_heads_kernel(Ptr<T> x, int64_t stride, NormArguments<R> norm, int head_dim) {
  begin_launch();
  const Ptr<T> head = x + (blockIdx.x * stride + blockIdx.y * static_cast<int64_t>(head_dim));
  norm_row<false, T, T, R>(head, head, norm, head_dim);
}

// Normalizes `heads` heads of head_dim elements of every row in place. Rows are `stride` apart.
template <class T>
void norm_heads(Stream stream, Ptr<T> x, int64_t stride, int heads, int head_dim,
                const NormArguments<Residual<T>>& norm, int64_t rows) {
  launch(stream, norm_heads_kernel<T, Residual<T>>, {kThreads, rows, heads}, x, stride, norm,
         head_dim);
}

// Heads of a row, and one layer's keys and values, [pages, kv_heads, page_rows, head_dim] each.
template <class T>
struct PagedHeads {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  Ptr<T> keys = nullptr;
  Ptr<T> values = nullptr;
};

// Angles are position * inverse_frequencies[i], in fp32.
template <class R>
struct Rotation {
  Ptr<const float> inverse_frequencies = nullptr;  // [head_dim / 2]; null: no rotation
  R factor = 1;                                    // scales cosines and sines
};

// A thread per pair (i, i + head_dim / 2) of a row: of query heads, then of keys, then of values.
// Thread blocks of a row: blockIdx.y. Heads of odd size are not rotated; their last pair is one
// element.
template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    rope_and_store_kernel(Ptr<T> qkv, RowView rows, PagedHeads<T> kv, Rotation<R> rotation) {
  begin_launch();
  const int64_t r = blockIdx.x;
  const int half = (kv.head_dim + 1) / 2;
  const int pair = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  const int head = pair / half;
  const int i = pair % half;
  if (head >= kv.heads + 2 * kv.kv_heads && !mutated(Mutant::kRopeTail)) return;
  const int next = mutated(Mutant::kRopeNeighbours) ? 1 : half;
  const bool two = i + half < kv.head_dim;
  const bool rotate = !(rotation.inverse_frequencies == nullptr) && head < kv.heads + kv.kv_heads;
  if (head < kv.heads && !rotate) return;
  // All loads come first, so that none waits for another.
  const Ptr<T> from = qkv + ((r * (kv.heads + 2 * kv.kv_heads) + head) * kv.head_dim + i);
  T a = from[0];
  T b = two ? static_cast<T>(from[next]) : T{};
  const float position = rotate ? static_cast<float>(rows.position[r]) : 0.0f;
  const float frequency = rotate ? static_cast<float>(rotation.inverse_frequencies[i]) : 0.0f;
  const int64_t place = head < kv.heads || mutated(Mutant::kStoreInOrder) ? r : rows.slot[r];
  if (rotate) {
    const R angle = static_cast<R>(position * frequency);
    const R c = rotation.factor * cos(angle);
    const R s = rotation.factor * sin(angle);
    const R x = static_cast<R>(a), y = static_cast<R>(b);
    a = static_cast<T>(x * c - y * s);
    b = static_cast<T>(y * c + x * s);
  }
  Ptr<T> to = from;
  if (head >= kv.heads) {
    const bool key = head < kv.heads + kv.kv_heads;
    const int kv_head = head - kv.heads - (key ? 0 : kv.kv_heads);
    const int64_t row =
        (place / rows.page_rows * kv.kv_heads + kv_head) * rows.page_rows + place % rows.page_rows;
    to = (key ? kv.keys : kv.values) + (row * kv.head_dim + i);
  }
  to[0] = a;
  if (two) to[next] = b;
}

// qkv: [rows, (heads + 2 kv_heads) * head_dim]. Rotates queries in place; stores rotated keys and
// values at the rows' slots. heads may be 0: only keys and values. Rotation requires an even
// head_dim.
template <class T>
void rope_and_store(Stream stream, Ptr<T> qkv, const RowView& rows, const PagedHeads<T>& kv,
                    const Rotation<Residual<T>>& rotation) {
  const int pairs = (kv.heads + 2 * kv.kv_heads) * ((kv.head_dim + 1) / 2);
  launch(stream, rope_and_store_kernel<T, Residual<T>>,
         {kThreads, rows.rows, (pairs + kThreads - 1) / kThreads}, qkv, rows, kv, rotation);
}

template <class R>
__device__ R activated(R x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return x / (R(1) + exp(-x));
    case Activation::kGelu:
      return R(0.5) * x * (R(1) + erf(x * R(0.70710678118654752)));
    case Activation::kGeluTanh: {
      const R u = R(0.79788456080286536) * (x + R(0.044715) * x * x * x);
      return R(0.5) * x * (R(1) + tanh(u));
    }
    case Activation::kRelu:
      return x < R(0) ? R(0) : x;
  }
  return x;
}

// A bounded grid for n elements; threads continue in strides of the grid.
inline Geometry flat(int64_t n) {
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return {kThreads, blocks < 65535 ? blocks : 65535};
}

template <class T, class R>
__global__ void gate_kernel(Ptr<T> out, Ptr<const T> gate_up, int64_t n, int64_t width,
                            Activation activation) {
  begin_launch();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    const Ptr<const T> row = gate_up + i / width * 2 * width;
    const int64_t up = mutated(Mutant::kGateRows) ? 2 * width : width;
    const R g = static_cast<R>(row[i % width]);
    out[i] = static_cast<T>(activated(g, activation) * static_cast<R>(row[up + i % width]));
  }
}

// out = act(gate) * up. gate_up: [rows, 2 * width], gate first. out: [rows, width]
template <class T>
void gate(Stream stream, Ptr<T> out, Ptr<const T> gate_up, Activation activation, int64_t rows,
          int64_t width) {
  launch(stream, gate_kernel<T, Residual<T>>, flat(rows * width), out, gate_up, rows * width, width,
         activation);
}

template <class T, class R>
__global__ void activate_kernel(Ptr<T> x, int64_t n, Activation activation) {
  begin_launch();
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    x[i] = static_cast<T>(activated(static_cast<R>(x[i]), activation));
  }
}

// x = act(x), over n elements.
template <class T>
void activate(Stream stream, Ptr<T> x, Activation activation, int64_t n) {
  launch(stream, activate_kernel<T, Residual<T>>, flat(n), x, n, activation);
}

}  // namespace tandem::cuda
