// Few rows times a packed weight matrix on tensor cores; the CUDA side of cpu/product.h.
//
// Weights go through a multiprocessor once and stay in no cache; so they are packed at load as
// mma.m16n8k16 takes them in registers, 16 bytes a lane. The weight is the instruction's left side
// (16 outs by 16 inputs), eight rows its right side.
//
// A number of the result is summed over the inputs in steps of 32: warp w of a block takes steps w,
// w + 8, .. one after the other, and the warps' sums are added in ascending order. How many rows
// there are, how many tiles a warp takes at once and how many blocks there are changes nothing in
// that. So a row has the same bits alone or among others, as far as the tensor cores compute each
// number of a tile alike.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/cuda/kernels/product_end.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cuda {

inline constexpr int kMostNormedRows = 4;  // each block norms them for itself
inline constexpr int kStepInputs = 32;  // two instructions, of eight consecutive inputs of a lane

// A matrix [outs, in] in tiles: [tiles][steps][2][kWarp] words of eight numbers. Filled up with
// zeros.
struct PackedShape {
  int64_t outs = 0;
  int64_t in = 0;      // a multiple of 8
  bool pairs = false;  // tiles of the first half of the outs alternate with those of the second:
                       // a gate and what it gates

  __host__ __device__ int64_t width() const { return pairs ? outs / 2 : outs; }
  __host__ __device__ int steps() const {
    return static_cast<int>((in + kStepInputs - 1) / kStepInputs);
  }
  // An even number.
  __host__ __device__ int64_t tiles() const {
    const int64_t outs_of_two = pairs ? kTileOuts : 2 * kTileOuts;
    return (width() + outs_of_two - 1) / outs_of_two * 2;
  }
  __host__ __device__ int64_t words() const { return tiles() * steps() * 2 * kWarp; }

  // Row of the matrix in a tile's row r; -1: there is none.
  __device__ int64_t out_of(int64_t tile, int r) const {
    const bool beside = pairs && !mutated(Mutant::kPackInOrder);
    const int64_t i = (beside ? tile / 2 : tile) * kTileOuts + r;
    return i < width() ? i + (beside ? tile % 2 * width() : 0) : -1;
  }
};

// A thread to a word. The instruction's fragments, of lane 4 g + t: registers 0 and 2 are of row g,
// 1 and 3 of row g + 8; of its inputs 0 .. 15 it takes 2 t, 2 t + 1 in 0 and 1, and 2 t + 8, 2 t +
// 9 in 2 and 3. Which inputs these are is ours to say: the lane's four of the step's eight.
template <class T>
__global__ void pack_kernel(Ptr<T> packed, Ptr<const T> weights, PackedShape s) {
  begin_launch();
  for (int64_t word = blockIdx.x * int64_t{kThreads} + threadIdx.x; word < s.words();
       word += int64_t{gridDim.x} * kThreads) {
    const int lane = static_cast<int>(word % kWarp);
    const int64_t step = word / kWarp / 2 % s.steps();
    const int64_t tile = word / kWarp / 2 / s.steps();
    const int64_t first = step * kStepInputs + lane % 4 * 8 + word / kWarp % 2 * 4;
    for (int i = 0; i < 8; ++i) {
      const int64_t out = s.out_of(tile, lane / 4 + i / 2 % 2 * 8);
      const int64_t k = first + i / 4 * 2 + i % 2;
      T x = static_cast<T>(0.0f);
      if (out >= 0 && k < s.in) x = weights[out * s.in + k];
      packed[word * 8 + i] = x;
    }
  }
}

// packed: [s.words() * 8], weights: [s.outs, s.in]
template <class T>
void pack(Stream stream, Ptr<T> packed, Ptr<const T> weights, const PackedShape& s) {
  launch(stream, pack_kernel<T>, flat(s.words()), packed, weights, s);
}

// For one launch. y = x W^T + bias
template <class T>
struct ProductArguments {
  using Number = T;
  PackedShape shape;
  Ptr<const T> weights = nullptr;  // packed
  int rows = 0;
  Ptr<const T> x = nullptr;             // [rows, in], or instead of it
  Ptr<const float> residual = nullptr;  // [rows, in] whose norm it is, of up to kMostNormedRows
  NormArguments<float> norm;            // not of layer
  Ptr<const T> bias = nullptr;          // [outs]; null: there is none
  ProductThen then = ProductThen::kStore;
  Activation activation = Activation::kSilu;
  // The result, [rows, outs] or if gated [rows, outs / 2]: one of both. Of kAdd: `sums`.
  Ptr<T> out = nullptr;
  Ptr<float> sums = nullptr;
  int64_t end = 0;  // only the first so many columns; 0: all

  __host__ __device__ int64_t columns() const { return end > 0 ? end : shape.width(); }
  __host__ __device__ int64_t row_stride() const { return shape.width(); }
};

// A block's task: groups of kTiles tiles, `gridDim.x` apart, for up to kRowTiles * 8 rows.
template <class T, int kTiles, int kRowTiles, bool kNormed>
class ProductBlock {
 public:
  static constexpr int kDepth = 4 / kTiles;  // steps whose weights are on their way together

  using End = ProductEnd<ProductArguments<T>, kTiles, kRowTiles>;
  struct Shared {
    typename End::Sums sums;
    BlockSums<float> squares;
  };

  __device__ ProductBlock(const ProductArguments<T>& a, Shared& shared)
      : a_(a), s_(shared), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {}

  // groups: of the whole launch
  __device__ void run(int64_t groups) {
    let_next_begin();
    prefetch_first();
    wait_for_last();
    if constexpr (kNormed) scale_rows();
    End end(a_, s_.sums);
    for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
      float c[kTiles][kRowTiles][4] = {};
      add_steps(group, c);
      end.finish(group, c);
      if (mutated(Mutant::kProductFirstTile)) break;
    }
  }

 private:
  // The weights that the block's warps read first are on their way while the launch before ends.
  __device__ void prefetch_first() const {
    const int steps = a_.shape.steps();
    const int64_t stride = int64_t{steps} * 2 * kWarp;
    const Ptr<const uint4> weights =
        words_of<uint4>(a_.weights) + (blockIdx.x * kTiles * stride + lane_);
    if (lane_ % kPrefetchLanes != 0) return;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int step = warp_ + d * kProductWarps;
      if (step >= steps) break;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        prefetch(weights, i / 2 * stride + (2 * step + i % 2) * kWarp);
      }
    }
  }

  // The norm's factor of the row that this lane multiplies, in norm_kernel's order.
  __device__ void scale_rows() {
    const int64_t in = a_.shape.in;
    const int own = mutated(Mutant::kProductScale) ? 0 : lane_ / 4;
    for (int r = 0; r < a_.rows; ++r) {
      const float squares = own_squares(a_.residual + r * in, 0.0f, in);
      const float scale =
          1.0f / sqrt(block_sum(squares, s_.squares) / static_cast<float>(in) + a_.norm.eps);
      if (r == own) scale_ = scale;
    }
  }

  __device__ void add_steps(int64_t group, float (&c)[kTiles][kRowTiles][4]) {
    const int steps = a_.shape.steps();
    const int64_t stride = int64_t{steps + (mutated(Mutant::kProductStride) ? 1 : 0)} * 2 * kWarp;
    const Ptr<const uint4> weights =
        words_of<uint4>(a_.weights) + (group * kTiles * stride + lane_);
    for (int first = warp_; first < steps; first += kProductWarps * kDepth) {
      uint4 w[kDepth][kTiles][2];
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int step = first + d * kProductWarps;
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
          w[d][i / 2][i % 2] = step < steps
                                   ? read_once(weights, i / 2 * stride + (2 * step + i % 2) * kWarp)
                                   : uint4{};
        }
      }
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int step = first + d * kProductWarps;
        if (step >= steps) continue;
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          const uint4 x = inputs(tile, step);
#pragma unroll
          for (int i = 0; i < kTiles; ++i) multiply(c[i][tile], w[d][i], x);
        }
      }
    }
  }

  static __device__ void multiply(float (&c)[4], const uint4 (&w)[2], const uint4& x) {
    const bool turned = mutated(Mutant::kProductHalves);
    add_tile(c, w[turned ? 1 : 0], x.x, x.y);
    add_tile(c, w[turned ? 0 : 1], x.z, x.w);
  }

  static __device__ void add_tile(float (&c)[4], const uint4& w, uint32_t x0, uint32_t x1) {
    if constexpr (is_half<T>) {
      mma_half(c, w, x0, x1);
    } else {
      mma_bf16(c, w, x0, x1);
    }
  }

  // Eight inputs of a step, of the lane's row in a tile of rows.
  __device__ uint4 inputs(int tile, int step) const {
    const int row = tile * kTileRows + lane_ / 4;
    const int64_t k = int64_t{step} * kStepInputs + lane_ % 4 * 8;
    if (row >= a_.rows && !mutated(Mutant::kProductRows)) return {};
    if (k >= a_.shape.in && !mutated(Mutant::kProductTail)) return {};
    const int64_t at = row * a_.shape.in + k;
    if constexpr (kNormed) {
      const Ptr<const uint4> x = words_of<uint4>(a_.residual) + at / 4;
      const Ptr<const uint4> weight = words_of<uint4>(a_.norm.weight) + k / 4;
      const uint4 x0 = x[0], x1 = x[1], w0 = weight[0], w1 = weight[1];
      return {normed(x0.x, w0.x, x0.y, w0.y), normed(x0.z, w0.z, x0.w, w0.w),
              normed(x1.x, w1.x, x1.y, w1.y), normed(x1.z, w1.z, x1.w, w1.w)};
    } else {
      return words_of<uint4>(a_.x)[at / 8];
    }
  }

  // Two neighbours, as norm_kernel rounds them.
  __device__ uint32_t normed(uint32_t x0, uint32_t w0, uint32_t x1, uint32_t w1) const {
    return normed(x0, w0) | uint32_t{normed(x1, w1)} << 16;
  }
  __device__ uint16_t normed(uint32_t x, uint32_t w) const {
    const float weight = mutated(Mutant::kProductWeightOfNorm) ? 1.0f : __uint_as_float(w);
    return static_cast<T>(weight * (__uint_as_float(x) * scale_)).bits;
  }

  const ProductArguments<T>& a_;
  Shared& s_;
  const int warp_, lane_;
  float scale_ = 0;
};

template <class T, int kTiles, int kRowTiles, bool kNormed>
__global__ void product_kernel(const __grid_constant__ ProductArguments<T> a, int64_t groups) {
  using Block = ProductBlock<T, kTiles, kRowTiles, kNormed>;
  __shared__ typename Block::Shared shared;
  Block(a, shared).run(groups);
}

template <class T, int kTiles, int kRowTiles, bool kNormed = false>
void launch_product(Stream stream, const ProductArguments<T>& a, int64_t most_blocks) {
  const int64_t outs = a.then == ProductThen::kGate ? kTileOuts : kTiles * kTileOuts;
  const int64_t groups = (a.columns() + outs - 1) / outs;
  launch(stream, product_kernel<T, kTiles, kRowTiles, kNormed>,
         {kProductThreads, groups < most_blocks ? groups : most_blocks}, a, groups);
}

// a.rows: 1 to kMostProductRows; T: BFloat16 or Half. most_blocks: that the device runs at once, or
// some of them; bits do not depend on it.
template <class T>
void product(Stream stream, const ProductArguments<T>& a, int64_t most_blocks) {
  const bool gated = a.then == ProductThen::kGate;
  if (!(a.residual == nullptr)) {
    gated ? launch_product<T, 2, 1, true>(stream, a, most_blocks)
          : launch_product<T, 1, 1, true>(stream, a, most_blocks);
  } else if (a.rows > kTileRows) {
    launch_product<T, 2, 2>(stream, a, most_blocks);
  } else {
    gated ? launch_product<T, 2, 1>(stream, a, most_blocks)
          : launch_product<T, 1, 1>(stream, a, most_blocks);
  }
}

}  // namespace tandem::cuda
