// Few rows times a weight matrix in blocks of 4 or 8 bits (cpu/quantized_matrix.h) on tensor cores.
//
// As on the CPU, rows are rounded to numbers of 8 bits with a scale for each 32 of them, a group.
// The products of a group are integers and summed exactly (mma.m16n8k32), and its sum is added as
// the CPU adds it:
//
//   total = fma(sum(q x) - zero sum(x), scale dx, total); total = fma(-less, dx sum(x), total)
//
// but in steps of four groups, which eight warps take in turn; their totals are added first to
// last. So a row's bits depend on that row alone, and on nothing that is a tensor core's own.
//
// Only tests include this: no model loads quantized weights on CUDA yet.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/cuda/kernels/product_end.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cuda {

inline constexpr int kGroupInputs = 32;
inline constexpr int kStepGroups = 4;

enum class BlockKind : uint8_t {
  kEights,         // Q8_0: 8 bits less 128, a scale for 32 inputs
  kFours,          // Q4_0: 4 bits less 8, the same
  kTwoLevelFours,  // Q4_K: 4 bits; d and dmin for 256 inputs, 6 bits times each of both for 32
};

// How a step of a tile lies, in words of 16 bytes: codes, [code_words][kWarp]; scales, [8]; of two
// levels those of 256 inputs, [4].
//
// A word of a lane 4 g + t has the codes that its registers of a product of tiles want: of 8 bits
// those of a group; of 4 bits outs g and g + 8 of two groups, inputs 4 t .. 4 t + 3 low and 16 on
// high. Word g of the scales has 32 bits for each group: fp16 scales of outs g and g + 8; of two
// levels s and n of g, then of g + 8, a byte each. Then fp16 d and dmin of g, and of g + 8.
struct BlockShape {
  int64_t outs = 0;
  int64_t in = 0;      // a multiple of 32; of two levels of 256
  bool pairs = false;  // as PackedShape
  BlockKind kind = BlockKind::kFours;

  __host__ __device__ int64_t width() const { return pairs ? outs / 2 : outs; }
  __host__ __device__ int groups() const { return static_cast<int>(in / kGroupInputs); }
  __host__ __device__ int steps() const { return (groups() + kStepGroups - 1) / kStepGroups; }
  // An even number.
  __host__ __device__ int64_t tiles() const {
    const int64_t outs_of_two = pairs ? kTileOuts : 2 * kTileOuts;
    return (width() + outs_of_two - 1) / outs_of_two * 2;
  }
  __host__ __device__ static constexpr int code_words(BlockKind kind) {
    return kind == BlockKind::kEights ? 4 : 2;
  }
  __host__ __device__ static constexpr int step_words(BlockKind kind) {
    return code_words(kind) * kWarp + 8 + (kind == BlockKind::kTwoLevelFours ? 4 : 0);
  }
  __host__ __device__ int64_t words() const { return tiles() * steps() * step_words(kind); }
};

// A row's numbers of one group: value = scale * code.
struct GroupScale {
  float scale;
  int32_t sum;  // of its codes
};

// Rows as products of blocks read them.
struct BlockRows {
  // [rows][steps][4][kStepGroups][2] fours of bytes with sign, by lane t: inputs 4 t on and 16 + 4
  // t on.
  Ptr<uint8_t> codes = nullptr;
  Ptr<GroupScale> scales = nullptr;  // [steps * kStepGroups][kMostProductRows]

  __host__ __device__ static int64_t code_bytes(int64_t steps, int64_t rows) {
    return rows * steps * kStepGroups * kGroupInputs;
  }
  __host__ __device__ static int64_t scale_count(int64_t steps) {
    return steps * kStepGroups * kMostProductRows;
  }
};

template <class X>
__device__ X warp_most(X x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const X other = __shfl_xor_sync(0xffffffffu, x, step);
    if (other > x) x = other;
  }
  return x;
}

// A block to a row, a warp to a group, as cpu::quantize_groups() rounds. Codes of groups behind a
// row's last are zeros, and so are scales of rows behind `rows`.
template <class From>
__global__ void quantize_rows_kernel(BlockRows to, Ptr<const From> x, int rows, int64_t in) {
  begin_launch();
  const int row = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int groups = static_cast<int>(in / kGroupInputs);
  const int steps = (groups + kStepGroups - 1) / kStepGroups;
  float first = 0;
  for (int group = threadIdx.x / kWarp; group < steps * kStepGroups; group += kProductWarps) {
    const bool there = row < rows && group < groups;
    const float v = there ? static_cast<float>(x[row * in + group * kGroupInputs + lane]) : 0.0f;
    // By bits, so that NaN is the largest of all.
    const uint32_t most = warp_most(__float_as_uint(v) & 0x7fffffffu);
    const bool finite = most < 0x7f800000u;
    const float top = __uint_as_float(most);
    const bool tiny = top < 0x1p-100f;
    float code = 0;
    if (finite && !tiny) code = v * __fdiv_rn(127.0f, top);
    code =
        planted(Mutant::kBlocksRounded) ? static_cast<float>(static_cast<int>(code)) : rint(code);
    const auto whole = static_cast<int32_t>(code);
    const int32_t sum = warp_sum(whole);
    if (row < rows) {
      const int step = group / kStepGroups;
      const int64_t at = ((int64_t{row} * steps + step) * 4 + lane % 16 / 4) * kGroupInputs;
      const int word = group % kStepGroups * 2 + lane / 16;
      to.codes[at + word * 4 + lane % 4] = static_cast<uint8_t>(whole);
    }
    if (lane != 0 || group >= groups) continue;
    float scale = tiny ? 1.0f : __fdiv_rn(top, 127.0f);
    if (!finite) scale = planted(Mutant::kBlocksNan) ? 1.0f : __uint_as_float(0x7fc00000u);
    if (!there) scale = 0;
    if (group == 0) first = scale;
    if (planted(Mutant::kBlocksOfARow)) scale = first;
    to.scales[int64_t{group} * kMostProductRows + row] = {scale, sum};
  }
}

// x: [rows, in] of BFloat16, Half or float
template <class From>
void quantize_rows(Stream stream, const BlockRows& to, Ptr<const From> x, int rows, int64_t in) {
  launch(stream, quantize_rows_kernel<From>, {kProductThreads, kMostProductRows}, to, x, rows, in);
}

// For one launch. y = x W^T + bias; T: of biases and results
template <class T>
struct BlockArguments {
  using Number = T;
  BlockShape shape;
  Ptr<const uint4> weights = nullptr;  // [shape.words()]
  BlockRows x;
  int rows = 0;
  Ptr<const T> bias = nullptr;  // this and the rest as in ProductArguments
  ProductThen then = ProductThen::kStore;
  Activation activation = Activation::kSilu;
  Ptr<T> out = nullptr;
  Ptr<float> sums = nullptr;
  int64_t end = 0;

  __host__ __device__ int64_t columns() const { return end > 0 ? end : shape.width(); }
};

// A block's task, as ProductBlock.
template <class T, BlockKind kKind, int kTiles, int kRowTiles>
class BlockProduct {
 public:
  static constexpr bool kTwoLevels = kKind == BlockKind::kTwoLevelFours;
  static constexpr int kCodeWords = BlockShape::code_words(kKind);
  static constexpr int kStepWords = BlockShape::step_words(kKind);
  static constexpr int kZero = kKind == BlockKind::kEights ? 128 : kTwoLevels ? 0 : 8;
  static constexpr int kDepth = 8 / kCodeWords / kTiles / kRowTiles > 0
                                    ? 8 / kCodeWords / kTiles / kRowTiles
                                    : 1;  // steps whose weights are on their way together

  using End = ProductEnd<BlockArguments<T>, kTiles, kRowTiles>;
  using Shared = typename End::Sums;

  __device__ BlockProduct(const BlockArguments<T>& a, Shared& shared)
      : a_(a), shared_(shared), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {}

  // groups: of tiles, of the whole launch
  __device__ void run(int64_t groups) {
    let_next_begin();
    prefetch_first();
    wait_for_last();
    End end(a_, shared_);
    for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
      float c[kTiles][kRowTiles][4] = {};
      add_steps(group, c);
      end.finish(group, c);
    }
  }

 private:
  // A step of one tile, as a lane has it.
  struct Weights {
    uint4 codes[kCodeWords];
    uint4 scales;
    uint32_t levels[2];  // fp16 d and dmin, of outs g and g + 8
  };
  // Of an out: value = scale (q - zero) - less.
  struct Line {
    float scale, less;
  };

  // As ProductBlock's.
  __device__ void prefetch_first() const {
    const int steps = a_.shape.steps();
    if (lane_ % kPrefetchLanes != 0) return;
#pragma unroll
    for (int n = 0; n < kDepth * kTiles; ++n) {
      const int step = warp_ + n / kTiles * kProductWarps;
      if (step >= steps) break;
      const int64_t tile = int64_t{blockIdx.x} * kTiles + n % kTiles;
      const Ptr<const uint4> from = a_.weights + (tile * steps + step) * kStepWords;
#pragma unroll
      for (int i = 0; i < kCodeWords; ++i) prefetch(from, i * kWarp + lane_);
    }
  }

  __device__ void add_steps(int64_t group, float (&c)[kTiles][kRowTiles][4]) {
    const int steps = a_.shape.steps();
    for (int first = warp_; first < steps; first += kProductWarps * kDepth) {
      Weights w[kDepth][kTiles];
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int step = first + d * kProductWarps;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          if (step < steps) load(w[d][i], (group * kTiles + i) * steps + step);
        }
      }
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int step = first + d * kProductWarps;
        if (step < steps) add_step(step, w[d], c);
      }
    }
  }

  // at: tile and step
  __device__ void load(Weights& w, int64_t at) const {
    const Ptr<const uint4> from = a_.weights + at * kStepWords;
#pragma unroll
    for (int i = 0; i < kCodeWords; ++i) w.codes[i] = read_once(from, i * kWarp + lane_);
    w.scales = read_once(from, kCodeWords * kWarp + lane_ / 4);
    if constexpr (kTwoLevels) {
      const Ptr<const uint32_t> levels = words_of<uint32_t>(from) + (kCodeWords * kWarp + 8) * 4;
      w.levels[0] = levels[lane_ / 4 * 2];
      w.levels[1] = levels[lane_ / 4 * 2 + 1];
    }
  }

  __device__ void add_step(int step, const Weights (&w)[kTiles],
                           float (&c)[kTiles][kRowTiles][4]) const {
    const int groups = a_.shape.groups();
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const int row = tile * kTileRows + lane_ / 4;
      uint4 x[2] = {};
      if (row < a_.rows) {
        const int64_t at = (int64_t{row} * a_.shape.steps() + step) * 4 + lane_ % 4;
        x[0] = words_of<uint4>(a_.x.codes)[at * 2];
        x[1] = words_of<uint4>(a_.x.codes)[at * 2 + 1];
      }
#pragma unroll
      for (int j = 0; j < kStepGroups; ++j) {
        const int group = step * kStepGroups + j;
        if (group >= groups && !planted(Mutant::kBlocksTail)) break;
        // The scales of rows 2 t and 2 t + 1.
        const int scaled = planted(Mutant::kBlocksRows) ? 0 : tile;
        const uint4 s = words_of<uint4>(
            a_.x.scales)[(int64_t{group} * kMostProductRows + scaled * kTileRows + lane_ % 4 * 2) /
                         2];
        const uint4& both = x[j / 2];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          add_group(c[i][tile], w[i], j, j % 2 == 0 ? both.x : both.z, j % 2 == 0 ? both.y : both.w,
                    s);
        }
      }
    }
  }

  // rows: GroupScale of two rows
  __device__ static void add_group(float (&c)[4], const Weights& w, int j, uint32_t x0, uint32_t x1,
                                   const uint4& rows) {
    int32_t sums[4] = {};
    mma_u8s8(sums, codes(w, j), x0, x1);
    const float dx[2] = {__uint_as_float(rows.x), __uint_as_float(rows.z)};
    const auto sum0 = static_cast<int32_t>(rows.y), sum1 = static_cast<int32_t>(rows.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Line line = line_of(w, j, planted(Mutant::kBlocksOuts) ? 0 : i / 2);
      const int32_t x = i % 2 == 0 ? sum0 : sum1;
      const int32_t q = sums[i] - (planted(Mutant::kBlocksZero) ? 0 : kZero * x);
      c[i] = __fmaf_rn(static_cast<float>(q), __fmul_rn(line.scale, dx[i % 2]), c[i]);
      if (kTwoLevels && !planted(Mutant::kBlocksMin)) {
        c[i] = __fmaf_rn(-line.less, __fmul_rn(dx[i % 2], static_cast<float>(x)), c[i]);
      }
    }
  }

  // The lane's registers of a product of tiles, of the step's group j.
  __device__ static uint4 codes(const Weights& w, int j) {
    if constexpr (kKind == BlockKind::kEights) {
      return w.codes[j];
    } else {
      constexpr uint32_t kLow = 0x0f0f0f0f;
      const uint4& two = w.codes[j / 2];
      const uint32_t a = j % 2 == 0 ? two.x : two.z;
      const uint32_t b = j % 2 == 0 ? two.y : two.w;
      if (planted(Mutant::kBlocksHalves)) return {a >> 4 & kLow, b >> 4 & kLow, a & kLow, b & kLow};
      return {a & kLow, b & kLow, a >> 4 & kLow, b >> 4 & kLow};
    }
  }

  // Of out g (which: 0) or g + 8.
  __device__ static Line line_of(const Weights& w, int j, int which) {
    const uint4& s = w.scales;
    const uint32_t word = (j == 0 ? s.x : j == 1 ? s.y : j == 2 ? s.z : s.w) >> (16 * which);
    if constexpr (kTwoLevels) {
      const uint32_t levels = w.levels[which];
      return {__fmul_rn(half(levels), static_cast<float>(word & 255)),
              __fmul_rn(half(levels >> 16), static_cast<float>(word >> 8 & 255))};
    } else {
      return {half(word), 0};
    }
  }

  // Of the low 16 bits.
  __device__ static float half(uint32_t bits) {
    Half h;
    h.bits = static_cast<uint16_t>(bits & 0xffff);
    return static_cast<float>(h);
  }

  const BlockArguments<T>& a_;
  Shared& shared_;
  const int warp_, lane_;
};

template <class T, BlockKind kKind, int kTiles, int kRowTiles>
__global__ void block_product_kernel(const __grid_constant__ BlockArguments<T> a, int64_t groups) {
  using Task = BlockProduct<T, kKind, kTiles, kRowTiles>;
  __shared__ typename Task::Shared shared;
  Task(a, shared).run(groups);
}

template <class T, BlockKind kKind, int kTiles, int kRowTiles>
void launch_block_product(Stream stream, const BlockArguments<T>& a, int64_t most_blocks) {
  const int64_t outs = a.then == ProductThen::kGate ? kTileOuts : kTiles * kTileOuts;
  const int64_t groups = (a.columns() + outs - 1) / outs;
  launch(stream, block_product_kernel<T, kKind, kTiles, kRowTiles>,
         {kProductThreads, groups < most_blocks ? groups : most_blocks}, a, groups);
}

// a.x: of quantize_rows(). a.rows: 1 to kMostProductRows. most_blocks: as of product()
template <class T>
void block_product(Stream stream, const BlockArguments<T>& a, int64_t most_blocks) {
  const bool gated = a.then == ProductThen::kGate;
  const bool many = a.rows > kTileRows;
  const auto go = [&]<BlockKind kKind>() {
    if (many) {
      gated ? launch_block_product<T, kKind, 2, 2>(stream, a, most_blocks)
            : launch_block_product<T, kKind, 1, 2>(stream, a, most_blocks);
    } else {
      gated ? launch_block_product<T, kKind, 2, 1>(stream, a, most_blocks)
            : launch_block_product<T, kKind, 1, 1>(stream, a, most_blocks);
    }
  };
  switch (a.shape.kind) {
    case BlockKind::kEights:
      return go.template operator()<BlockKind::kEights>();
    case BlockKind::kFours:
      return go.template operator()<BlockKind::kFours>();
    case BlockKind::kTwoLevelFours:
      return go.template operator()<BlockKind::kTwoLevelFours>();
  }
}

}  // namespace tandem::cuda
