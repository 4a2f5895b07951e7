// Products of a few rows with weights in blocks of 4 to 8 bits (cpu/quantized_matrix.h) on tensor
// cores.
//
// As on the CPU, rows are quantized to int8 with a scale dx per group of 32 inputs, the products of
// a group are summed exactly as integers (mma.m16n8k32), and group sums are accumulated as on the
// CPU:
//
//   total = fma(sum(q x) - zero sum(x), scale dx, total); total = fma(-less, dx sum(x), total)
//
// The order differs from the CPU's: the eight warps of a block take steps of four groups in turn,
// and their totals are added in order. A row's bits depend on that row only, and not on how tensor
// cores round.
#pragma once

#include <cstdint>

#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/platform.h"
#include "engine/backend/torch/cuda/kernels/product_end.h"
#include "engine/backend/torch/kinds.h"
#include "engine/backend/torch/quant_format.h"

namespace tandem::cuda {

inline constexpr int kGroupInputs = 32;
inline constexpr int kStepGroups = 4;
inline constexpr int kBlockProductBlocks = 2;  // that a multiprocessor runs at once

// Device storage of a format.
struct BlockLayout {
  int bits;  // stored per code: 4, 6 (for codes of 5 and 6 bits) or 8
  QuantScales scales;
  int zero;

  // 16-byte words per step of a tile.
  __host__ __device__ constexpr int code_words() const { return bits / 2; }
  __host__ __device__ constexpr int step_words() const {
    return code_words() * kWarp + 8 +
           (scales == QuantScales::kScaleAndMin ? 8
            : scales == QuantScales::kTwoLevels ? 4
            : scales == QuantScales::kSixteens  ? 2
                                                : 0);
  }
};

__host__ __device__ constexpr BlockLayout layout_of(QuantType type) {
  const QuantFormat f = quant_format(type);
  return {f.bits == 5 ? 6 : f.bits, f.scales, f.zero};
}

// Layout of a step (four groups of 32 inputs) of a tile (16 outs), in 16-byte words:
//
//   | codes [code_words][32 lanes] | scales [8] | minimums [8]  |  kScaleAndMin
//   |                              |            | levels [4]    |  kTwoLevels
//   |                              |            | levels [2]    |  kSixteens
//   |                              |            |               |  kScale
//
// Lane 4g + t holds the A fragment of mma.m16n8k32, one code per byte:
//
//   register  r0              r1              r2                    r3
//   out       g               g + 8           g                     g + 8
//   inputs    4t .. 4t + 3    4t .. 4t + 3    16 + 4t .. 19 + 4t    16 + 4t .. 19 + 4t
//
//   codes of 8 bits, word j: group j
//             | r0 | r1 | r2 | r3 |
//   codes of 4 bits, word 0: groups 0 and 1; word 1: groups 2 and 3; low nibble first
//             | r0 r2 | r1 r3 | r0 r2 | r1 r3 |
//   codes of 6 bits, words 0 and 1: the lower four bits as above; word 2: the upper two bits, where
//   bits 2i, 2i + 1 of byte k belong to byte k of ri
//             | group 0 | group 1 | group 2 | group 3 |
//
//   scales, word g (g = 0..7):
//             | group 0 | group 1 | group 2 | group 3 |      32 bits each:
//     kScale, kScaleAndMin   | fp16 scale of out g         | fp16 scale of out g + 8       |
//     kTwoLevels             | s of out g | n of out g     | s of out g + 8 | n of g + 8   |
//     kSixteens              | s of g, 0..15 | s, 16..31   | s of g + 8, 0..15 | s, 16..31 |
//   minimums: like fp16 scales
//   levels, for g = 0..7:
//     kTwoLevels             | d of g | dmin of g | d of g + 8 | dmin of g + 8 |     fp16
//     kSixteens              | d of g | d of g + 8 |                                fp16
struct BlockShape {
  int64_t outs = 0;
  int64_t in = 0;      // a multiple of 32; kTwoLevels, kSixteens: of 256
  bool pairs = false;  // as in PackedShape
  QuantType type = QuantType::kQ40;

  __host__ __device__ int64_t width() const { return pairs ? outs / 2 : outs; }
  __host__ __device__ int groups() const { return static_cast<int>(in / kGroupInputs); }
  __host__ __device__ int steps() const { return (groups() + kStepGroups - 1) / kStepGroups; }
  // Even.
  __host__ __device__ int64_t tiles() const {
    const int64_t outs_of_two = pairs ? kTileOuts : 2 * kTileOuts;
    return (width() + outs_of_two - 1) / outs_of_two * 2;
  }
  __host__ __device__ int64_t words() const {
    return tiles() * steps() * layout_of(type).step_words();
  }

  // Matrix row of row r of a tile; >= outs: padding.
  __device__ int64_t out_of(int64_t tile, int r) const {
    const int64_t i = (pairs ? tile / 2 : tile) * kTileOuts + r;
    return i < width() ? i + (pairs ? tile % 2 * width() : 0) : outs;
  }
  __device__ int64_t tile_of(int64_t out) const {
    const int64_t side = pairs ? out / width() : 0;
    const int64_t i = out - side * width();
    return pairs ? i / kTileOuts * 2 + side : i / kTileOuts;
  }
};

// Quantization parameters of a row's group: value = scale * code.
struct GroupScale {
  float scale;
  uint32_t sums;  // of the first and of the last 16 codes, 16 bits each

  __host__ __device__ static uint32_t of(int32_t first, int32_t last) {
    return (static_cast<uint32_t>(first) & 0xffff) | static_cast<uint32_t>(last) << 16;
  }
};
__host__ __device__ inline int32_t first_sum(uint32_t sums) { return static_cast<int16_t>(sums); }
__host__ __device__ inline int32_t last_sum(uint32_t sums) {
  return static_cast<int16_t>(sums >> 16);
}

// Quantized rows, as the products read them.
struct BlockRows {
  // [rows][steps][t = 0..3][kStepGroups][2] words of four int8: inputs 4t .. 4t + 3 and 16 + 4t ..
  // 19 + 4t of a group.
  Ptr<uint32_t> codes = nullptr;
  // [2][steps * kStepGroups][kMostProductRows]. The second half is for formats with a minimum: its
  // `sums` are the fp32 bits of scale * sum of all codes.
  Ptr<GroupScale> scales = nullptr;

  __host__ __device__ static int64_t code_words(int64_t steps, int64_t rows) {
    return rows * steps * kStepGroups * kGroupInputs / 4;
  }
  __host__ __device__ static int64_t scale_half(int64_t steps) {
    return steps * kStepGroups * kMostProductRows;
  }
  __host__ __device__ static int64_t scale_count(int64_t steps) { return 2 * scale_half(steps); }
};

// Four elements of x from `at` on, a multiple of 4.
template <class From>
__device__ void load_four(float (&v)[4], Ptr<const From> x, int64_t at) {
  if constexpr (sizeof(From) == 4) {
    const uint4 four = words_of<uint4>(x)[at / 4];
    v[0] = __uint_as_float(four.x);
    v[1] = __uint_as_float(four.y);
    v[2] = __uint_as_float(four.z);
    v[3] = __uint_as_float(four.w);
  } else {
    const uint64_t four = words_of<uint64_t>(x)[at / 4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      From one;
      one.bits = static_cast<uint16_t>(four >> (16 * k));
      v[k] = static_cast<float>(one);
    }
  }
}

// Sum of the squares of a thread's elements, in the order of norm_row().
template <class From>
__device__ float own_squares_of_row(Ptr<const From> row, int64_t width) {
  constexpr int kTogether = 16;
  float squares = 0;
  for (int64_t first = threadIdx.x; first < width; first += kTogether * kThreads) {
    float x[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t i = first + k * kThreads;
      x[k] = i < width ? static_cast<float>(row[i]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) squares += x[k] * x[k];
  }
  return squares;
}

// One warp per step of a row (blockIdx.y), eight lanes per group. Rounds like
// cpu::quantize_groups(), after the norm, if any, in norm_kernel's order of summation: each thread
// block sums the whole row. Codes of groups past the end of a row are zero. The last row's blocks
// also write scales of the rows after it, up to the end of its tile: zero.
template <class From>
__global__ void __launch_bounds__(kProductThreads)
    quantize_rows_kernel(BlockRows to, Ptr<const From> x, int rows, int64_t in,
                         NormArguments<float> norm) {
  constexpr int kLanes = kWarp / kStepGroups;  // per group
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int own = lane % kLanes;
  const int row = static_cast<int>(blockIdx.y);
  const int groups = static_cast<int>(in / kGroupInputs);
  const int steps = (groups + kStepGroups - 1) / kStepGroups;
  const int step = static_cast<int>(blockIdx.x * kProductWarps + threadIdx.x / kWarp);
  const int group = step * kStepGroups + lane / kLanes;
  const bool there = group < groups;
  const int64_t i = (int64_t{step} * kWarp + lane) * 4;
  const bool normed = !(norm.weight == nullptr);
  if (normed && there) prefetch(norm.weight, i);
  wait_for_last();
  float v[4] = {};
  if (there) load_four(v, x, row * in + i);
  if (normed) {
    __shared__ BlockSums<float> sums;
    float weight[4] = {};
    if (there) load_four(weight, norm.weight, i);
    const float squares = own_squares_of_row(x + row * in, in);
    const float factor = 1.0f / sqrt(block_sum(squares, sums) / static_cast<float>(in) + norm.eps);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = (mutated(Mutant::kBlocksUnweighted) ? 1.0f : weight[k]) * (v[k] * factor);
    }
  }
  // Compares bit patterns, so that NaN is the maximum.
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) most = max(most, __float_as_uint(v[k]) & 0x7fffffffu);
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    most = max(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  }
  const bool finite = most < 0x7f800000u;
  const float top = __uint_as_float(most);
  const bool tiny = top < 0x1p-100f;
  const float inverse = finite && !tiny ? __fdiv_rn(127.0f, top) : 0.0f;
  uint32_t word = 0;
  int32_t sum = 0;  // over the lane's half of the group
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float code = finite && !tiny ? v[k] * inverse : 0.0f;
    const auto whole = static_cast<int32_t>(mutated(Mutant::kBlocksRounded) ? code : rint(code));
    word |= (static_cast<uint32_t>(whole) & 255) << (8 * k);
    sum += whole;
  }
#pragma unroll
  for (int lanes = kLanes / 4; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  }
  const int32_t other = __shfl_xor_sync(0xffffffffu, sum, kLanes / 2);
  float scale = tiny ? 1.0f : __fdiv_rn(top, 127.0f);
  if (!finite) scale = mutated(Mutant::kBlocksNan) ? 1.0f : __uint_as_float(0x7fc00000u);
  if (mutated(Mutant::kBlocksOfAStep)) scale = warp_sum(lane == 0 ? scale : 0.0f);
  if (step >= steps) return;
  const int64_t at = (int64_t{row} * steps + step) * kWarp;
  to.codes[at + own % 4 * (2 * kStepGroups) + lane / kLanes * 2 + own / 4] = word;
  if (!there && mutated(Mutant::kBlocksTail)) return;
  const int64_t first = int64_t{group} * kMostProductRows;
  const int64_t half = BlockRows::scale_half(steps);
  if (own == 0) {
    to.scales[first + row] = {scale, GroupScale::of(sum, other)};
    const float product = __fmul_rn(scale, static_cast<float>(sum + other));
    to.scales[half + first + row] = {scale, __float_as_uint(product)};
  }
  if (row != rows - 1) return;
  const int end = rows > kTileRows ? kMostProductRows : kTileRows;
  if (rows + own < end) {
    to.scales[first + rows + own] = GroupScale{};
    to.scales[half + first + rows + own] = GroupScale{};
  }
}

// x: [rows, in] of BFloat16, Half or float, aligned to 16 bytes. rows: 1 to kMostProductRows. norm:
// an RMS norm; null weight: none.
template <class From>
void quantize_rows(Stream stream, const BlockRows& to, Ptr<const From> x, int rows, int64_t in,
                   const NormArguments<float>& norm = {}) {
  constexpr int64_t kInputs = int64_t{kProductWarps} * kStepGroups * kGroupInputs;
  launch(stream, quantize_rows_kernel<From>, {kProductThreads, (in + kInputs - 1) / kInputs, rows},
         to, x, rows, in, norm);
}

// One lane's registers of a step of a tile.
template <QuantType kType>
struct BlockStep {
  static constexpr int kBits = layout_of(kType).bits;
  static constexpr QuantScales kScales = layout_of(kType).scales;
  static constexpr int kZero = layout_of(kType).zero;
  static constexpr int kCodeWords = layout_of(kType).code_words();
  static constexpr int kStepWords = layout_of(kType).step_words();
  static constexpr bool kLess =
      kScales == QuantScales::kScaleAndMin || kScales == QuantScales::kTwoLevels;
  static_assert(!kLess || kZero == 0);

  // Parameters of an out: value = scale (q - zero) - less.
  struct Line {
    float scale, less;
  };

  uint4 packed[kCodeWords];
  uint4 scales;
  uint4 minimums;
  uint32_t levels[2];  // fp16 d, dmin of out g; of out g + 8. kSixteens: [0] has d of both

  __device__ void load(Ptr<const uint4> from, int lane) {
#pragma unroll
    for (int i = 0; i < kCodeWords; ++i) packed[i] = read_once(from, i * kWarp + lane);
    scales = read_once(from, kCodeWords * kWarp + lane / 4);
    if constexpr (kScales == QuantScales::kScaleAndMin) {
      minimums = read_once(from, kCodeWords * kWarp + 8 + lane / 4);
    } else if constexpr (kScales == QuantScales::kTwoLevels) {
      const uint64_t two = words_of<uint64_t>(from + (kCodeWords * kWarp + 8))[lane / 4];
      levels[0] = static_cast<uint32_t>(two);
      levels[1] = static_cast<uint32_t>(two >> 32);
    } else if constexpr (kScales == QuantScales::kSixteens) {
      levels[0] = words_of<uint32_t>(from + (kCodeWords * kWarp + 8))[lane / 4];
    }
  }

  // A fragment of group j (registers r0 to r3).
  __device__ uint4 codes(int j) const {
    if constexpr (kBits == 8) {
      return packed[j];
    } else {
      constexpr uint32_t kLow = 0x0f0f0f0f;
      const uint4& two = packed[j / 2];
      const uint32_t a = j % 2 == 0 ? two.x : two.z;
      const uint32_t b = j % 2 == 0 ? two.y : two.w;
      uint4 c = {a & kLow, b & kLow, a >> 4 & kLow, b >> 4 & kLow};
      if (mutated(Mutant::kBlocksHalves)) {
        c = {a >> 4 & kLow, b >> 4 & kLow, a & kLow, b & kLow};
      }
      if constexpr (kBits == 6) {
        const uint32_t upper = of_group(packed[2], j);
        c.x |= twos(upper);
        c.y |= twos(upper >> (mutated(Mutant::kBlocksUpper) ? 4 : 2));
        c.z |= twos(upper >> (mutated(Mutant::kBlocksUpper) ? 2 : 4));
        c.w |= twos(upper >> 6);
      }
      return c;
    }
  }

  // Parameters of out g + 8 * which. Not for kSixteens.
  __device__ Line line(int j, int which) const {
    const uint32_t word = of_group(scales, j) >> (16 * which);
    if constexpr (kScales == QuantScales::kTwoLevels) {
      const uint32_t both = levels[which];
      return {__fmul_rn(half(both), static_cast<float>(word & 255)),
              __fmul_rn(half(both >> 16), static_cast<float>(word >> 8 & 255))};
    } else if constexpr (kScales == QuantScales::kScaleAndMin) {
      return {half(word), -half(of_group(minimums, j) >> (16 * which))};
    } else {
      return {half(word), 0};
    }
  }

  // kSixteens: scale of the first (last = 0) or last 16 inputs of group j.
  __device__ float scale(int j, int which, int last) const {
    if (mutated(Mutant::kBlocksSixteens)) last = 0;
    const uint32_t byte = of_group(scales, j) >> (16 * which + 8 * last) & 255;
    return __fmul_rn(half(levels[0] >> (16 * which)),
                     static_cast<float>(static_cast<int8_t>(byte)));
  }

 private:
  __device__ static uint32_t of_group(const uint4& words, int j) {
    return j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w;
  }
  __device__ static uint32_t twos(uint32_t x) { return (x & 0x03030303) << 4; }

  // fp16 in the low 16 bits.
  __device__ static float half(uint32_t bits) {
    Half h;
    h.bits = static_cast<uint16_t>(bits & 0xffff);
    return static_cast<float>(h);
  }
};

// Arguments of a launch: y = x W^T + bias. T: type of bias and result.
template <class T>
struct BlockArguments {
  using Number = T;
  BlockShape shape;
  Ptr<const uint4> weights = nullptr;  // [shape.words()]
  BlockRows x;
  int rows = 0;
  Ptr<const T> bias = nullptr;  // this and the following as in ProductArguments
  ProductThen then = ProductThen::kStore;
  Activation activation = Activation::kSilu;
  Ptr<T> out = nullptr;
  Ptr<float> sums = nullptr;
  int64_t end = 0;
  int64_t stride = 0;                // between rows of the result; 0: shape.width()
  Ptr<const float> added = nullptr;  // as in ProductArguments
  Ptr<const int32_t> added_row = nullptr;

  __host__ __device__ int64_t columns() const { return end > 0 ? end : shape.width(); }
  __host__ __device__ int64_t row_stride() const { return stride > 0 ? stride : shape.width(); }
};

// The work of one thread block, as ProductBlock.
template <class T, QuantType kType, int kTiles, int kRowTiles>
class BlockProduct {
 public:
  using Step = BlockStep<kType>;
  static constexpr int kStepWords = Step::kStepWords;
  // Steps of each tile whose weights are in registers or in flight.
  static constexpr int kInFlight = (Step::kBits == 4 ? 5 : 4) - kRowTiles;
  static constexpr int kDepth = kInFlight > kTiles ? kInFlight / kTiles : 1;
  // Tiles that are multiplied together.
  static constexpr int kTogether = kRowTiles == 1 ? 1 : kTiles;
  // A branch per group keeps the compiler from starting all groups of a step at once, where
  // registers are too few for that.
  static constexpr bool kBranches =
      Step::kScales == QuantScales::kSixteens || kTiles * kRowTiles > 2;

  using End = ProductEnd<BlockArguments<T>, kTiles, kRowTiles>;
  using Shared = typename End::Sums;

  __device__ BlockProduct(const BlockArguments<T>& a, Shared& shared)
      : a_(a), shared_(shared), warp_(threadIdx.x / kWarp), lane_(threadIdx.x % kWarp) {}

  // groups: of tiles, in the whole launch. Each step's registers are reloaded right after its
  // product. Weights are thus in flight also while the warps' sums of a group are added.
  __device__ void run(int64_t groups) {
    let_next_begin();
    prefetch_first();
    wait_for_last();
    const int steps = a_.shape.steps();
    Step w[kDepth][kTiles];
#pragma unroll
    for (int n = 0; n < kDepth * kTiles; ++n) {
      const int d = n / kTiles, tile = n % kTiles;
      const int step = warp_ + d * kProductWarps;
      if (step < steps) w[d][tile].load(weights(blockIdx.x, tile, step), lane_);
    }
    End end(a_, shared_);
    for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
      float c[kTiles][kRowTiles][4] = {};
#pragma unroll 1
      for (int first = warp_; first < steps; first += kProductWarps * kDepth) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          const int step = first + d * kProductWarps;
          if (step >= steps) break;
          const Inputs x(a_, step, lane_);
          const int after = step + kProductWarps * kDepth;
          const bool same = after < steps;
          const int64_t next_group =
              same || mutated(Mutant::kBlocksAhead) ? group : group + gridDim.x;
          const int next = same ? after : warp_ + d * kProductWarps;
#pragma unroll
          for (int tile = 0; tile < kTiles; tile += kTogether) {
            add_step(c, w[d], x, tile, a_.shape.groups() - step * kStepGroups);
            if (next_group >= groups) continue;
#pragma unroll
            for (int i = tile; i < tile + kTogether; ++i) {
              w[d][i].load(weights(next_group, i, next), lane_);
            }
          }
        }
      }
      end.finish(group, c);
    }
  }

 private:
  // Rows of a step, loaded where they are used: the compiler loads them as early as registers
  // allow.
  struct Inputs {
    Ptr<const uint4> codes_of_row, scales;
    int64_t tile_words;  // of the codes of a tile's rows
    int rows;            // after the lane's row of the first tile

    __device__ Inputs(const BlockArguments<T>& a, int step, int lane) {
      const int steps = a.shape.steps();
      const int64_t at = ((int64_t{lane / 4} * steps + step) * 4 + lane % 4) * 2;
      codes_of_row = words_of<uint4>(a.x.codes) + at;
      tile_words = int64_t{kTileRows} * steps * 8;
      rows = a.rows - lane / 4;
      const int64_t first = int64_t{step} * kStepGroups * kMostProductRows + lane % 4 * 2;
      scales =
          words_of<uint4>(a.x.scales + (first + (Step::kLess ? BlockRows::scale_half(steps) : 0)));
    }

    // Groups 2 * two and 2 * two + 1 of the lane's row of a tile.
    __device__ uint4 codes(int two, int tile) const {
      return tile * kTileRows < rows ? codes_of_row[tile * tile_words + two] : uint4{};
    }
    // GroupScale of rows 2t and 2t + 1 of a tile.
    __device__ uint4 scale(int j, int tile) const {
      const int scaled = mutated(Mutant::kBlocksRows) ? 0 : tile;
      return scales[(j * kMostProductRows + scaled * kTileRows) / 2];
    }
  };

  __device__ Ptr<const uint4> weights(int64_t group, int tile, int step) const {
    return a_.weights + ((group * kTiles + tile) * a_.shape.steps() + step) * kStepWords;
  }

  // As in ProductBlock.
  __device__ void prefetch_first() const {
    constexpr int kLineWords = 8;
    const int steps = a_.shape.steps();
    if (lane_ * kLineWords >= kStepWords) return;
#pragma unroll
    for (int n = 0; n < kDepth * kTiles; ++n) {
      const int step = warp_ + n / kTiles * kProductWarps;
      if (step < steps) prefetch(weights(blockIdx.x, n % kTiles, step), lane_ * kLineWords);
    }
  }

  // Multiplies kTogether tiles from `from` on. left: groups up to the end of a row; those past it
  // add zero.
  __device__ static void add_step(float (&c)[kTiles][kRowTiles][4], const Step (&w)[kTiles],
                                  const Inputs& x, int from, int left) {
#pragma unroll
    for (int n = 0; n < kStepGroups * kRowTiles * kTogether; ++n) {
      const int j = n / kTogether / kRowTiles, rows = n / kTogether % kRowTiles;
      if (kBranches && n % (kRowTiles * kTogether) == 0 && j >= left) break;
      const int tile = from + n % kTogether;
      const uint4 both = x.codes(j / 2, rows);
      const uint32_t x0 = j % 2 == 0 ? both.x : both.z;
      const uint32_t x1 = j % 2 == 0 ? both.y : both.w;
      if constexpr (Step::kScales == QuantScales::kSixteens) {
        add_sixteens(c[tile][rows], w[tile], j, x0, x1, x.scale(j, rows));
      } else {
        add_group(c[tile][rows], w[tile], j, x0, x1, x.scale(j, rows));
      }
    }
  }

  // rows: two GroupScale.
  __device__ static void add_group(float (&c)[4], const Step& w, int j, uint32_t x0, uint32_t x1,
                                   const uint4& rows) {
    int32_t sums[4] = {};
    if constexpr (!Step::kLess) {
      sums[0] = sums[2] = less_zero(first_sum(rows.y) + last_sum(rows.y));
      sums[1] = sums[3] = less_zero(first_sum(rows.w) + last_sum(rows.w));
    }
    mma_u8s8(sums, w.codes(j), x0, x1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto line = w.line(j, mutated(Mutant::kBlocksOuts) ? 0 : i / 2);
      const float dx = __uint_as_float(i % 2 == 0 ? rows.x : rows.z);
      c[i] = __fmaf_rn(static_cast<float>(sums[i]), __fmul_rn(line.scale, dx), c[i]);
      if (Step::kLess && !mutated(Mutant::kBlocksMin)) {
        c[i] = __fmaf_rn(-line.less, __uint_as_float(i % 2 == 0 ? rows.y : rows.w), c[i]);
      }
    }
  }

  // Each 16 inputs have their own scale, so the halves are multiplied by separate instructions with
  // zeros in the other half.
  __device__ static void add_sixteens(float (&c)[4], const Step& w, int j, uint32_t x0, uint32_t x1,
                                      const uint4& rows) {
    const uint4 codes = w.codes(j);
    int32_t first[4], last[4];
    first[0] = first[2] = less_zero(first_sum(rows.y));
    first[1] = first[3] = less_zero(first_sum(rows.w));
    last[0] = last[2] = less_zero(last_sum(rows.y));
    last[1] = last[3] = less_zero(last_sum(rows.w));
    mma_u8s8(first, codes, x0, 0);
    mma_u8s8(last, codes, 0, x1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float dx = __uint_as_float(i % 2 == 0 ? rows.x : rows.z);
      const float both_sums =
          __fmaf_rn(static_cast<float>(last[i]), w.scale(j, i / 2, 1),
                    __fmul_rn(static_cast<float>(first[i]), w.scale(j, i / 2, 0)));
      c[i] = __fmaf_rn(both_sums, dx, c[i]);
    }
  }

  // What a sum of products starts from. x: sum of the row's codes.
  __device__ static int32_t less_zero(int32_t x) {
    return mutated(Mutant::kBlocksZero) ? 0 : -Step::kZero * x;
  }

  const BlockArguments<T>& a_;
  Shared& shared_;
  const int warp_, lane_;
};

template <class T, QuantType kType, int kTiles, int kRowTiles>
__global__ void __launch_bounds__(kProductThreads, kBlockProductBlocks)
    block_product_kernel(const __grid_constant__ BlockArguments<T> a, int64_t groups) {
  using Task = BlockProduct<T, kType, kTiles, kRowTiles>;
  __shared__ typename Task::Shared shared;
  Task(a, shared).run(groups);
}

template <class T, QuantType kType, int kTiles, int kRowTiles>
void launch_block_product(Stream stream, const BlockArguments<T>& a, int64_t most_blocks) {
  const int64_t outs = a.then == ProductThen::kGate ? kTileOuts : kTiles * kTileOuts;
  const int64_t groups = (a.columns() + outs - 1) / outs;
  launch(stream, block_product_kernel<T, kType, kTiles, kRowTiles>,
         {kProductThreads, groups < most_blocks ? groups : most_blocks}, a, groups);
}

// a.x: from quantize_rows(). a.rows: 1 to kMostProductRows. most_blocks: as for product().
template <class T>
void block_product(Stream stream, const BlockArguments<T>& a, int64_t most_blocks) {
  const bool gated = a.then == ProductThen::kGate;
  const bool many = a.rows > kTileRows;
  const auto go = [&]<QuantType kType>() {
    if (many) {
      gated ? launch_block_product<T, kType, 2, 2>(stream, a, most_blocks)
            : launch_block_product<T, kType, 1, 2>(stream, a, most_blocks);
    } else {
      gated ? launch_block_product<T, kType, 2, 1>(stream, a, most_blocks)
            : launch_block_product<T, kType, 1, 1>(stream, a, most_blocks);
    }
  };
  for_quant_type(a.shape.type, go);
}

// One warp per step of a tile, or, with `rows`, per step of one of these rows. Negative rows are
// skipped.
template <class To, QuantType kType>
__global__ void unpack_blocks_kernel(Ptr<To> to, Ptr<const uint4> weights, BlockShape s,
                                     Ptr<const int32_t> rows, int64_t n) {
  begin_launch();
  using Step = BlockStep<kType>;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t task = blockIdx.x * int64_t{kProductWarps} + threadIdx.x / kWarp;
  const int step = static_cast<int>(task % s.steps());
  const int64_t which = task / s.steps();
  if (which >= n) return;
  const bool some = !(rows == nullptr);
  const int64_t row = some ? rows[which] : 0;
  if (some && row < 0) return;
  const int64_t tile = some ? s.tile_of(row) : which;
  Step w;
  w.load(weights + (tile * s.steps() + step) * Step::kStepWords, lane);
#pragma unroll
  for (int j = 0; j < kStepGroups; ++j) {
    const int64_t group = int64_t{step} * kStepGroups + j;
    if (group >= s.groups()) break;
    const uint4 codes = w.codes(j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t out = s.out_of(tile, lane / 4 + i % 2 * 8);
      if (some ? out != row : out >= s.outs) continue;
      float scale = 0, less = 0;
      if constexpr (Step::kScales == QuantScales::kSixteens) {
        scale = w.scale(j, i % 2, i / 2);
      } else {
        const auto line = w.line(j, i % 2);
        scale = line.scale;
        less = line.less;
      }
      const uint32_t four = i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
      const int64_t place = mutated(Mutant::kUnpackInTiles) ? tile * kTileOuts + lane / 4 : out;
      const int64_t at =
          (some ? which : place) * s.in + group * kGroupInputs + i / 2 * 16 + lane % 4 * 4;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int32_t code = static_cast<int32_t>(four >> (8 * k) & 255) - Step::kZero;
        to[at + k] = static_cast<To>(__fadd_rn(__fmul_rn(scale, static_cast<float>(code)), -less));
      }
    }
  }
}

// to[r] = row rows[r] of the matrix, for rows[r] >= 0. to: [n, in]. rows null: all rows, [outs,
// in].
template <class To>
void unpack_blocks(Stream stream, Ptr<To> to, Ptr<const uint4> weights, const BlockShape& s,
                   Ptr<const int32_t> rows, int64_t n) {
  const int64_t all = rows == nullptr ? s.tiles() : n;
  const int64_t blocks = (all * s.steps() + kProductWarps - 1) / kProductWarps;
  for_quant_type(s.type, [&]<QuantType kType>() {
    launch(stream, unpack_blocks_kernel<To, kType>, {kProductThreads, blocks}, to, weights, s, rows,
           all);
  });
}

}  // namespace tandem::cuda
