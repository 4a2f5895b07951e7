// Products of up to 16 rows with quantized weights, with the device's grids.
#include "engine/backend/torch/cuda/kernels/quantized.h"

#include <gtest/gtest.h>

#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/cuda/kernels/quantized_check.h"
#include "tests/sanitized.h"

namespace tandem::cuda {
namespace {

using cpu::QuantType;

class BlockProductKernel : public testing::TestWithParam<QuantType> {
 protected:
  void SetUp() override { emulator::seed(7); }
  // At least n, in whole blocks of the type.
  static int64_t inputs(int64_t n) {
    const int block = cpu::quant_format(GetParam()).inputs();
    return (n + block - 1) / block * block;
  }
};

// From less than a step to several rounds of all warps; from less than a tile to several groups.
TEST_P(BlockProductKernel, SumsInTheDocumentedOrder) {
  uint64_t seed = 0;
  for (const int64_t in : {32, 160, 1088}) {
    if (test::kSanitized && in > 160) continue;  // LoadsWeightsAhead has several rounds too
    for (const int64_t outs : {1, 16, 50}) {
      const BlocksShape s{.type = GetParam(), .outs = outs, .in = inputs(in)};
      ++seed;
      EXPECT_EQ(check_blocks<BFloat16>(s, 1 + static_cast<int>(seed * 5 % 16), seed), "");
    }
  }
  EXPECT_EQ(check_blocks<Half>({.type = GetParam(), .in = inputs(64)}, 3, 50), "");
}

TEST_P(BlockProductKernel, NormalizesBeforeQuantization) {
  EXPECT_EQ(check_blocks<BFloat16>({.type = GetParam(), .in = inputs(300), .normed = true}, 11, 60),
            "");
}

// More steps than a warp has in flight, several groups of tiles per thread block, and rows that
// take several thread blocks to quantize.
TEST_P(BlockProductKernel, LoadsWeightsAhead) {
  BlocksShape s{.type = GetParam(), .outs = 36, .in = inputs(4400), .blocks = 1};
  EXPECT_EQ(check_blocks<BFloat16>(s, 9, 70), "");
  s.normed = true;
  if (!test::kSanitized) EXPECT_EQ(check_blocks<BFloat16>(s, 1, 71), "");
  s.then = ProductThen::kGate;
  s.added = true;
  if (!test::kSanitized) EXPECT_EQ(check_blocks<BFloat16>(s, 2, 72), "");
  EXPECT_EQ(check_blocks<BFloat16>(s, 9, 73), "");
}

// For queries, keys and values that have different types in a file.
TEST_P(BlockProductKernel, WritesPartsOfAResult) {
  for (const ProductThen then : {ProductThen::kStore, ProductThen::kAdd}) {
    EXPECT_EQ(
        check_blocks<BFloat16>(
            {.type = GetParam(), .outs = 20, .in = inputs(64), .then = then, .beside = 7}, 9, 61),
        "");
  }
}

// More than 64 rows and embeddings use the unpacked values of the file.
TEST_P(BlockProductKernel, UnpacksToTheFilesValues) {
  const BlocksRig<BFloat16> rig({.type = GetParam(), .outs = 37, .in = inputs(160)}, 62);
  EXPECT_EQ(rig.unpacked<BFloat16>(), "");
  EXPECT_EQ(rig.unpacked<float>({36, -1, 0, 17, 17}), "");
  const BlocksRig<BFloat16> pairs(
      {.type = GetParam(), .outs = 2 * 21, .in = inputs(64), .then = ProductThen::kGate}, 63);
  EXPECT_EQ(pairs.unpacked<float>(), "");
  EXPECT_EQ(pairs.unpacked<float>({20, 21, 41}), "");
}

TEST_P(BlockProductKernel, IntegersMatchTheCpu) {
  for (const int rows : {1, 9}) {
    for (const ProductThen then : {ProductThen::kStore, ProductThen::kAdd}) {
      const BlocksShape s{
          .type = GetParam(), .in = inputs(544), .then = then, .bias = true, .whole = true};
      EXPECT_EQ(check_blocks<BFloat16>(s, rows, 20), "");
    }
  }
}

TEST_P(BlockProductKernel, AddsActivatesAndGates) {
  uint64_t seed = 40;
  for (const ProductThen then :
       {ProductThen::kStore, ProductThen::kAdd, ProductThen::kActivate, ProductThen::kGate}) {
    for (const int rows : {2, 16}) {
      BlocksShape s{.type = GetParam(), .outs = 2 * 21, .in = inputs(96), .then = then};
      s.bias = rows == 16;
      s.in_fp32 = false;
      EXPECT_EQ(check_blocks<BFloat16>(s, rows, ++seed), "");
    }
  }
}

TEST_P(BlockProductKernel, GatesAfterAdditions) {
  BlocksShape s{.type = GetParam(), .outs = 2 * 20, .in = inputs(64), .then = ProductThen::kGate};
  s.added = true;
  for (const int rows : {2, 11}) {
    EXPECT_EQ(check_blocks<BFloat16>(s, rows, 80 + static_cast<uint64_t>(rows)), "");
  }
}

// Exactness of greedy decoding depends on this property.
TEST_P(BlockProductKernel, IsBatchInvariantUpToSixteenRows) {
  std::vector<int> all = {1, 9, 16};
  if (!test::kSanitized) {
    all = first_rows(kMostProductRows + 1);
    all.erase(all.begin());
  }
  EXPECT_EQ(
      check_blocks_rows<BFloat16>({.type = GetParam(), .outs = 18, .in = inputs(64)}, 90, all), "");
  const BlocksShape gated{
      .type = GetParam(), .outs = 20, .in = inputs(160), .then = ProductThen::kGate};
  EXPECT_EQ(check_blocks_rows<BFloat16>(gated, 91, {2, 8, 9, 16}), "");
}

TEST_P(BlockProductKernel, BitsDoNotDependOnTheGridOrColumns) {
  BlocksShape s{.type = GetParam(), .outs = 70, .in = inputs(96), .blocks = 1};
  const std::vector<float> one = BlocksRig<BFloat16>(s, 95).run(first_rows(5));
  s.blocks = 100;
  EXPECT_EQ(same_bits("", BlocksRig<BFloat16>(s, 95).run(first_rows(5)), one), "");
  s.first = 37;
  EXPECT_EQ(check_blocks<BFloat16>(s, 5, 95), "");
}

TEST_P(BlockProductKernel, NaNStaysInItsRow) {
  EXPECT_EQ(check_blocks_nan<BFloat16>({.type = GetParam(), .in = inputs(96)}, 97), "");
}

// As many bytes as the file, plus padding; one bit more per 5-bit code, a quarter bit for two
// levels.
TEST_P(BlockProductKernel, HasTheDocumentedSize) {
  const BlocksShape s{.type = GetParam(), .outs = 64, .in = 512};
  const BlocksRig<BFloat16> rig(s, 1);
  const cpu::QuantFormat f = cpu::quant_format(GetParam());
  const int64_t in_file = 64 * (512 / f.inputs()) * f.block_bytes();
  const int64_t sixteenths = f.scales == QuantScales::kTwoLevels  ? 4
                             : f.scales == QuantScales::kSixteens ? 1
                                                                  : 0;  // bits per 16 weights
  const int64_t more = 64 * 512 * (sixteenths + (f.bits == 5 ? 16 : 0)) / 16 / 8;
  EXPECT_EQ(rig.device_shape.words() * 16, in_file + more);
}

constexpr const char* kNames[] = {"Q40", "Q41", "Q50", "Q51", "Q80", "Q4K", "Q5K", "Q6K"};
INSTANTIATE_TEST_SUITE_P(Types, BlockProductKernel,
                         testing::Values(QuantType::kQ40, QuantType::kQ41, QuantType::kQ50,
                                         QuantType::kQ51, QuantType::kQ80, QuantType::kQ4K,
                                         QuantType::kQ5K, QuantType::kQ6K),
                         [](const auto& info) { return kNames[static_cast<int>(info.param)]; });

// The sum of codes in a word of cpu::quantize_groups().
int32_t sum_of(int32_t word) {
  return cpu::target() == "AVX2" ? static_cast<int16_t>(word) + (word >> 16) : word / -32;
}

// Codes are rounded exactly like the CPU's.
TEST(QuantizeRowsKernel, MatchesTheCpu) {
  if (!cpu::multiplies_fours()) GTEST_SKIP() << "another order of codes on this processor";
  const auto width = static_cast<size_t>(cpu::quantized_words());
  BlocksRig<BFloat16> rig({.in = 160}, 3);
  for (int64_t i = 0; i < 32; ++i) rig.x(1, 32 + i) = 0;
  for (int64_t i = 0; i < 32; ++i) rig.x(2, 64 + i) = 0x1p-110;
  const std::vector<int> rows = {0, 1, 2};
  const auto got = rig.rounded_rows(rows);
  for (const int r : rows) {
    std::vector<float> x;
    for (int64_t i = 0; i < 160; ++i) x.push_back(static_cast<float>(rig.x(r, i)));
    std::vector<int32_t> want(5 * width);
    cpu::quantize_groups(want.data(), x.data(), 160);
    for (int g = 0; g < 5; ++g) {
      const int32_t* const words = &want[width * static_cast<size_t>(g)];
      for (int i = 0; i < 32; ++i) {
        const int at = ((r * 2 + g / 4) * 4 + i % 16 / 4) * 8 + g % 4 * 2 + i / 16;
        EXPECT_EQ(got.codes[at] >> i % 4 * 8 & 255, reinterpret_cast<const uint8_t*>(words)[i])
            << r << " " << g;
      }
      const GroupScale scale = got.scales[g * kMostProductRows + r];
      EXPECT_EQ(first_sum(scale.sums), sum_of(words[8]));
      EXPECT_EQ(last_sum(scale.sums), sum_of(words[9]));
      EXPECT_EQ(scale.scale, std::bit_cast<float>(words[width - 2]));
      const GroupScale whole = got.scales[BlockRows::scale_half(2) + g * kMostProductRows + r];
      EXPECT_EQ(whole.scale, scale.scale);
      EXPECT_EQ(std::bit_cast<float>(whole.sums),
                scale.scale * static_cast<float>(sum_of(words[8]) + sum_of(words[9])));
    }
  }
}

// Segments of different types become separate matrices; on the CPU they are consecutive.
TEST(PackedBlocks, OnePerSegment) {
  const std::vector<cpu::QuantizedMatrix::Part> parts = {{QuantType::kQ4K, 20},
                                                         {QuantType::kQ6K, 40}};
  cpu::QuantizedMatrix both(parts, 256), second({parts[1]}, 256);
  std::mt19937_64 random(8);
  for (int64_t row = 0; row < 60; ++row) {
    std::vector<std::byte> blocks(256);
    for (std::byte& b : blocks) b = static_cast<std::byte>(random() & 255);
    both.pack(row, blocks.data());
    if (row >= 20) second.pack(row - 20, blocks.data());
  }
  const BlockShape shape = block_shape(both, 1);
  EXPECT_EQ(shape.outs, 40);
  EXPECT_EQ(shape.type, QuantType::kQ6K);
  std::vector<std::byte> got(static_cast<size_t>(shape.words()) * 16), want(got.size());
  pack_blocks(got.data(), both, 1, shape, 0, shape.tiles());
  pack_blocks(want.data(), second, 0, block_shape(second), 0, shape.tiles());
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace tandem::cuda
