// Products of a few rows with a weight matrix on tensor cores. CUDA counterpart of cpu/product.h.
//
// Weights are read once and not cached, so they are packed at load in the order of the registers of
// mma.m16n8k16, 16 bytes per lane. The weight is operand A (16 outs x 16 inputs), eight rows are
// operand B.
//
// Batch invariance: each element of the result is summed over steps of 32 inputs. Warp w of a block
// sums steps w, w + 8, ... in order, and the warps' sums are added in ascending order. The number
// of rows, tiles per warp and thread blocks does not affect this order. A row thus has the same
// bits in any batch, provided that tensor cores compute every element of a tile in the same way.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/cuda/kernels/product_end.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cuda {

inline constexpr int kProductBlocks = 2;  // that a multiprocessor runs at once
inline constexpr int kStepInputs = 32;    // two instructions; a lane has eight consecutive inputs

// A matrix [outs, in] as tiles [tiles][steps][2][kWarp] of 16-byte words (eight elements), padded
// with zeros.
struct PackedShape {
  int64_t outs = 0;
  int64_t in = 0;      // a multiple of 8
  bool pairs = false;  // even tiles: first half of the outs (gates); odd: second half (gated)

  __host__ __device__ int64_t width() const { return pairs ? outs / 2 : outs; }
  __host__ __device__ int steps() const {
    return static_cast<int>((in + kStepInputs - 1) / kStepInputs);
  }
  // Even.
  __host__ __device__ int64_t tiles() const {
    const int64_t outs_of_two = pairs ? kTileOuts : 2 * kTileOuts;
    return (width() + outs_of_two - 1) / outs_of_two * 2;
  }
  __host__ __device__ int64_t words() const { return tiles() * steps() * 2 * kWarp; }

  // Matrix row of row r of a tile; -1: padding.
  __device__ int64_t out_of(int64_t tile, int r) const {
    const bool beside = pairs && !mutated(Mutant::kPackInOrder);
    const int64_t i = (beside ? tile / 2 : tile) * kTileOuts + r;
    return i < width() ? i + (beside ? tile % 2 * width() : 0) : -1;
  }
};

// One thread per word. Fragments of the instruction in lane 4g + t: registers 0 and 2 belong to row
// g, 1 and 3 to row g + 8. Registers 0 and 1 hold inputs 2t, 2t + 1; registers 2 and 3 hold inputs
// 2t + 8, 2t + 9. The mapping to inputs of the matrix is free: here a lane takes eight consecutive
// inputs, four per instruction.
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

// Arguments of a launch: y = x W^T + bias.
template <class T>
struct ProductArguments {
  using Number = T;
  PackedShape shape;
  Ptr<const T> weights = nullptr;  // packed
  int rows = 0;
  Ptr<const T> x = nullptr;     // [rows, in]
  Ptr<const T> bias = nullptr;  // [outs] or null
  ProductThen then = ProductThen::kStore;
  Activation activation = Activation::kSilu;
  // Exactly one is set: [rows, outs], or [rows, outs / 2] if gated. kAdd requires `sums`.
  Ptr<T> out = nullptr;
  Ptr<float> sums = nullptr;
  int64_t end = 0;  // compute only the first `end` columns; 0: all
  // Added before the gate, if gated: row added_row[r] of [.., outs]; none if that is negative, or
  // if `added` is null.
  Ptr<const float> added = nullptr;
  Ptr<const int32_t> added_row = nullptr;  // [rows]

  __host__ __device__ int64_t columns() const { return end > 0 ? end : shape.width(); }
  __host__ __device__ int64_t row_stride() const { return shape.width(); }
};

// The work of one thread block: groups of kTiles tiles in strides of the grid, for up to kRowTiles
// * 8 rows.
template <class T, int kTiles, int kRowTiles>
class ProductBlock {
 public:
  static constexpr int kDepth = 4 / kTiles;  // steps whose weights are in flight together

  using End = ProductEnd<ProductArguments<T>, kTiles, kRowTiles>;
  using Shared = typename End::Sums;

  __device__ ProductBlock(const ProductArguments<T>& a, Shared& shared)
      : a_(a), s_(shared), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {}

  // groups in the whole launch. The words after those being multiplied are loaded meanwhile, also
  // while the warps' sums of a group are added.
  __device__ void run(int64_t groups) {
    let_next_begin();
    prefetch_first();
    wait_for_last();
    const int steps = a_.shape.steps();
    uint4 next[kDepth][kTiles][2];
    load(blockIdx.x, warp_, next);
    End end(a_, s_);
    for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
      float c[kTiles][kRowTiles][4] = {};
#pragma unroll 1
      for (int first = warp_; first < steps; first += kProductWarps * kDepth) {
        uint4 x[kDepth][kRowTiles];
#pragma unroll
        for (int i = 0; i < kDepth * kRowTiles; ++i) {
          const int d = i / kRowTiles, tile = i % kRowTiles;
          x[d][tile] = inputs(tile, first + d * kProductWarps);
        }
        uint4 w[kDepth][kTiles][2];
        memcpy(w, next, sizeof(w));
        const int after = first + kProductWarps * kDepth;
        if (after < steps) {
          load(group, after, next);
        } else if (group + gridDim.x < groups) {
          load(group + gridDim.x, warp_, next);
        }
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          if (first + d * kProductWarps >= steps) continue;
#pragma unroll
          for (int i = 0; i < kTiles * kRowTiles; ++i) {
            multiply(c[i % kTiles][i / kTiles], w[d][i % kTiles], x[d][i / kTiles]);
          }
        }
      }
      end.finish(group, c);
      if (mutated(Mutant::kProductFirstTile)) break;
    }
  }

 private:
  // Prefetches the first weights of the thread block's warps while the previous launch finishes.
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

  // The weights of a group for kDepth steps of a warp, from step `first` on.
  __device__ void load(int64_t group, int first, uint4 (&w)[kDepth][kTiles][2]) const {
    const int steps = a_.shape.steps();
    const int64_t stride = int64_t{steps + (mutated(Mutant::kProductStride) ? 1 : 0)} * 2 * kWarp;
    const Ptr<const uint4> weights =
        words_of<uint4>(a_.weights) + (group * kTiles * stride + lane_);
#pragma unroll
    for (int i = 0; i < kDepth * kTiles * 2; ++i) {
      const int d = i / (2 * kTiles), tile = i / 2 % kTiles;
      const int step = first + d * kProductWarps;
      w[d][tile][i % 2] =
          step < steps ? read_once(weights, tile * stride + (2 * step + i % 2) * kWarp) : uint4{};
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

  // Eight inputs of a step, for the lane's row of a tile.
  __device__ uint4 inputs(int tile, int step) const {
    const int row = tile * kTileRows + lane_ / 4;
    const int64_t k = int64_t{step} * kStepInputs + lane_ % 4 * 8;
    if (row >= a_.rows && !mutated(Mutant::kProductRows)) return {};
    if (k >= a_.shape.in && !mutated(Mutant::kProductTail)) return {};
    return words_of<uint4>(a_.x)[(row * a_.shape.in + k) / 8];
  }

  const ProductArguments<T>& a_;
  Shared& s_;
  const int warp_, lane_;
};

template <class T, int kTiles, int kRowTiles>
__global__ void __launch_bounds__(kProductThreads, kProductBlocks)
    product_kernel(const __grid_constant__ ProductArguments<T> a, int64_t groups) {
  using Block = ProductBlock<T, kTiles, kRowTiles>;
  __shared__ typename Block::Shared shared;
  Block(a, shared).run(groups);
}

template <class T, int kTiles, int kRowTiles>
void launch_product(Stream stream, const ProductArguments<T>& a, int64_t most_blocks) {
  const int64_t outs = a.then == ProductThen::kGate ? kTileOuts : kTiles * kTileOuts;
  const int64_t groups = (a.columns() + outs - 1) / outs;
  launch(stream, product_kernel<T, kTiles, kRowTiles>,
         {kProductThreads, groups < most_blocks ? groups : most_blocks}, a, groups);
}

// T: BFloat16 or Half. a.rows: 1 to kMostProductRows. most_blocks: maximum grid size, at most what
// the device runs concurrently; does not affect bits.
template <class T>
void product(Stream stream, const ProductArguments<T>& a, int64_t most_blocks) {
  const bool gated = a.then == ProductThen::kGate;  // a gate's tile and that of its factor
  if (a.rows > kTileRows) {
    gated ? launch_product<T, 2, 2>(stream, a, most_blocks)
          : launch_product<T, 1, 2>(stream, a, most_blocks);
  } else {
    gated ? launch_product<T, 2, 1>(stream, a, most_blocks)
          : launch_product<T, 1, 1>(stream, a, most_blocks);
  }
}

}  // namespace tandem::cuda
