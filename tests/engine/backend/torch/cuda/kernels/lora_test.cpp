// Low-rank additions of LoRA adapters, with the device's grids.
#include <gtest/gtest.h>

#include "tests/engine/backend/torch/cuda/kernels/lora_check.h"

namespace tandem::cuda {
namespace {

template <class T>
class LoraKernels : public testing::Test {
 protected:
  void SetUp() override { emulator::seed(7); }
};
using Types = testing::Types<float, double, BFloat16, Half>;
TYPED_TEST_SUITE(LoraKernels, Types);

// Layers of several matrices. Adapters change some of them, with different ranks.
LoraCase of_queries(int64_t in, bool add) {
  return {.in = in,
          .outs = {24, 8, 8},
          .ranks = {{3, 5, 1}, {8, 0, 2}, {0, 0, 4}, {0, 0, 0}, {16, 16, 16}},
          .add = add};
}

// Inputs that fill no step, one step and more, in words of 16 bytes or not. To the product's type
// and to the residual stream's.
TYPED_TEST(LoraKernels, MatchFp64) {
  using R = Residual<TypeParam>;
  uint64_t seed = 0;
  for (const int64_t in : {5, 8, 40, 259, 2056}) {
    for (const bool add : {true, false}) {
      const LoraCase s = of_queries(in, add);
      const int rows = 1 + static_cast<int>(seed * 5 % 14);
      EXPECT_EQ((check_lora<TypeParam>(s, rows, ++seed)), "") << in;
      EXPECT_EQ((check_lora<TypeParam, R>(s, rows, ++seed)), "") << in;
    }
  }
}

TYPED_TEST(LoraKernels, MatchFp64InPrompts) {
  for (const int rows : {kSingleRows, kSingleRows + 1, 80}) {
    EXPECT_EQ((check_lora<TypeParam>(of_queries(40, true), rows, 30)), "");
    EXPECT_EQ((check_lora<TypeParam>(of_queries(13, false), rows, 31)), "");
  }
}

// One or two matrices, more columns than a thread block has.
TYPED_TEST(LoraKernels, OfOtherLayers) {
  const LoraCase gated{.in = 24, .outs = {300, 300}, .ranks = {{2, 3}, {0, 7}}, .add = false};
  const LoraCase down{.in = 300, .outs = {520}, .ranks = {{2}, {9}, {0}}};
  EXPECT_EQ((check_lora<TypeParam>(gated, 5, 40)), "");
  EXPECT_EQ((check_lora<TypeParam>(down, 5, 41)), "");
}

// Of a batch without adapters nothing is written; of one with a single adapter, all rows.
TYPED_TEST(LoraKernels, OfNoRowsAndOfAllRows) {
  for (const bool add : {true, false}) {
    const LoraCase s = of_queries(16, add);
    for (const int adapter : {-1, 0, 3}) {
      for (const int n : {3, kSingleRows + 12}) {
        const std::vector<LoraRow> rows(static_cast<size_t>(n), {2, adapter});
        EXPECT_EQ((check_lora<TypeParam>(s, rows, 50)), "") << adapter;
      }
    }
  }
}

// Exactness of greedy decoding with adapters depends on this property.
TYPED_TEST(LoraKernels, RowsHaveTheSameBitsInAnyBatch) {
  LoraCase s = of_queries(40, true);
  s.distinct = 4;
  const std::vector<int> counts = {2, 3, 9, 16, 33, kSingleRows, kSingleRows + 1, 90};
  EXPECT_EQ((check_lora_bits<TypeParam>(s, counts, 60)), "");
  s.in = 19;
  s.add = false;
  EXPECT_EQ((check_lora_bits<TypeParam>(s, {5, 40, 71}, 61)), "");
}

TYPED_TEST(LoraKernels, RowsOfSumsAreAdded) {
  for (const int64_t width : {1, 40, 300}) {
    EXPECT_EQ((check_added_rows<TypeParam>(1, width, 70)), "");
    EXPECT_EQ((check_added_rows<TypeParam>(7, width, 71)), "");
  }
}

LoraCase adapters(int64_t in, std::vector<int64_t> outs, std::vector<int> ranks) {
  LoraCase s{.in = in, .outs = std::move(outs), .distinct = 4};
  for (const int rank : ranks) s.ranks.emplace_back(s.outs.size(), rank);
  return s;
}

std::vector<int> ranks_in_turn(int adapters) {
  std::vector<int> ranks;
  for (int i = 0; i < adapters; ++i) ranks.push_back(1 + i % 8);
  return ranks;
}

// The widths of Qwen2.5's models of 0.5 and 1.5 B parameters.
TEST(LoraShapes, OfRealModels) {
  emulator::seed(8);
  EXPECT_EQ((check_lora<BFloat16>(adapters(896, {896, 128, 128}, {8, 1, 16}), 5, 80)), "");
  EXPECT_EQ((check_lora<BFloat16, float>(adapters(1536, {1536}, {16, 64}), 6, 81)), "");
  EXPECT_EQ((check_lora<BFloat16, float>(adapters(8960, {1536}, {8, 16}), 3, 82)), "");
  LoraCase up = adapters(1536, {8960, 8960}, {8, 1});
  up.add = false;
  EXPECT_EQ((check_lora<BFloat16, float>(up, 2, 83)), "");
  EXPECT_EQ((check_lora<Half>(adapters(896, {896}, {256}), 2, 84)), "");
  EXPECT_EQ((check_lora<float>(adapters(896, {896}, {256, 64, 1}), 3, 85)), "");
}

// Up to 32 adapters in one batch of up to 64 rows, and a prompt.
TEST(LoraShapes, OfManyAdapters) {
  emulator::seed(9);
  for (const int n : {0, 1, 32}) {
    LoraCase s = adapters(896, {128, 32, 32}, ranks_in_turn(n));
    for (const int rows : {1, 16, 64, 70}) {
      EXPECT_EQ((check_lora<BFloat16>(s, rows, 90 + static_cast<uint64_t>(rows))), "") << n;
    }
  }
}

TEST(LoraShapes, BitsAtRealWidths) {
  const LoraCase s = adapters(1536, {256}, {16, 8, 64});
  EXPECT_EQ((check_lora_bits<BFloat16, float>(s, {2, 17, 66}, 95)), "");
}

}  // namespace
}  // namespace tandem::cuda
