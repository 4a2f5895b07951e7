// Every kernel against the CPU's, with the device's grids.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "engine/sampling/lanes.h"
#include "tests/engine/backend/torch/cuda/kernels/checks.h"
#include "tests/engine/backend/torch/cuda/kernels/fp8_check.h"
#include "tests/engine/backend/torch/cuda/kernels/gather_check.h"
#include "tests/engine/backend/torch/cuda/kernels/moves_check.h"
#include "tests/engine/backend/torch/cuda/kernels/readout_check.h"
#include "tests/sanitized.h"

namespace tandem::cuda {
namespace {

template <class T>
class Kernels : public testing::Test {
 protected:
  void SetUp() override { emulator::seed(7); }
};
using Types = testing::Types<float, double, BFloat16, Half>;
TYPED_TEST_SUITE(Kernels, Types);

TYPED_TEST(Kernels, Inputs) {
  for (const int64_t width : {1, 32, 300}) {
    EXPECT_EQ(check_inputs<TypeParam>(1, width, 1), "");
    EXPECT_EQ(check_inputs<TypeParam>(5, width, 2), "");
  }
}

TYPED_TEST(Kernels, Norms) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t width : {4, 33, 256, 700}) {
      EXPECT_EQ(check_norms<TypeParam>(kind, 3, width, 3), "");
    }
  }
}

TYPED_TEST(Kernels, Activations) {
  for (const Activation kind :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    EXPECT_EQ(check_activations<TypeParam>(kind, 3, 5, 4), "");
    EXPECT_EQ(check_activations<TypeParam>(kind, 2, 301, 5), "");
  }
}

TEST(RoundedRows, HaveTheNearestNumbersOfFp8) {
  emulator::seed(7);
  for (const int64_t width : {1, 16, 300, 5000}) {
    EXPECT_EQ(check_rounded<BFloat16>(width > 1000 ? 1 : 5, width, 1), "") << width;
  }
  EXPECT_EQ(check_rounded<float>(5, 272, 2), "");
  EXPECT_EQ(check_rounded<Half>(2, 48, 3), "");
}

TEST(RoundedRows, OfEachSizeOfNumber) {
  emulator::seed(7);
  // Steps of a quarter of those of e4m3, from subnormal numbers to the largest.
  std::vector<double> numbers;
  for (int code = 0; code < 0x7e; ++code) {
    for (int part = 0; part < 4; ++part) {
      numbers.push_back(e4m3(code) + part * (e4m3(code + 1) - e4m3(code)) / 4);
    }
  }
  numbers.push_back(448);
  const auto n = static_cast<int64_t>(numbers.size());
  const DeviceArray<float> x("x", numbers);
  const DeviceArray<uint8_t> codes("codes", n);
  const DeviceArray<float> scales("scales", 1);
  round_rows<float>({}, codes, scales, x, 1, n);
  EXPECT_EQ(scales[0], 1);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(codes[i], nearest_e4m3(x[i])) << x[i];
}

TEST(RoundedRows, KeepWhatIsNotFinite) {
  emulator::seed(7);
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t width : {16, 300}) EXPECT_EQ(check_rounded_odd<BFloat16>(odd, width), "");
  }
}

TEST(RoundedRows, OfTinyNumbers) {
  emulator::seed(7);
  const DeviceArray<float> x("x", std::vector<double>{0, 1e-40, -1e-37, 1e-38});
  const DeviceArray<uint8_t> codes("codes", 4);
  const DeviceArray<float> scales("scales", 1);
  round_rows<float>({}, codes, scales, x, 1, 4);
  EXPECT_EQ(scales[0], std::numeric_limits<float>::min());
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(codes[i], nearest_e4m3(x[i] / scales[0])) << x[i];
}

TYPED_TEST(Kernels, RotaryEmbeddingAndStore) {
  for (const bool rotate : {true, false}) {
    EXPECT_EQ(check_rope<TypeParam>({6, 2, 20, 4}, 7, rotate, 6), "");
    EXPECT_EQ(check_rope<TypeParam>({3, 1, 96, 16}, 3, rotate, 7), "");
    EXPECT_EQ(check_rope<TypeParam>({8, 8, 64, 1}, 2, rotate, 8), "");
    if (!rotate) {
      EXPECT_EQ(check_rope<TypeParam>({6, 2, 21, 4}, 5, rotate, 9), "") << "an odd head";
    }
  }
}

TYPED_TEST(Kernels, Attention) {
  EXPECT_EQ(check_attention<TypeParam>({{4, 2, 20, 4}, {{19, 3}, {0, 2}, {7, 1}}, 9}), "");
  EXPECT_EQ(check_attention<TypeParam>({{2, 1, 128, 16}, {{40, 1}}, 10}), "");
}

// Caches of one row to several pages, chains and trees, group sizes, windows of the plan.
TEST(AttentionKernel, OverPagesTreesGroupsAndWindows) {
  uint64_t seed = 20;
  for (const auto& [heads, kv_heads] : {std::pair{2, 2}, std::pair{3, 1}, std::pair{6, 2}}) {
    for (const int d : {4, 33}) {
      for (const int page_rows : {1, 4, 16}) {
        for (const int window : {0, 6}) {
          const AttentionShape s{heads, kv_heads, d, page_rows, window};
          EXPECT_EQ(check_attention<float>({s, {{0, 1}, {13, 4}, {22, 1}}, ++seed}), "");
        }
      }
    }
  }
}

TEST(AttentionKernel, WithTheWindowOfALayerAndPrompts) {
  uint64_t seed = 80;
  for (const int window : {1, 5, 64}) {
    for (const int prompts : {0, 3}) {
      const AttentionShape s{4, 2, 24, 4};
      EXPECT_EQ(check_attention<float>({s, {{21, 8}, {3, 6}}, ++seed}, {window, prompts}), "");
    }
  }
}

// Contexts of several splits, partly outside windows; more query heads than a block.
TEST(AttentionKernel, OverSplitsAndWideGroups) {
  EXPECT_EQ(check_attention<float>({{2, 1, 8, 16}, {{520, 3}, {3, 1}, {254, 4}}, 85}), "");
  EXPECT_EQ(check_attention<BFloat16>({{2, 2, 16, 16}, {{300, 2}}, 86}), "");
  EXPECT_EQ(check_attention<float>({{2, 1, 8, 16}, {{700, 2}}, 87}, {100, 0}), "");
  EXPECT_EQ(check_attention<float>({{20, 1, 8, 4}, {{9, 3}}, 88}), "");
  EXPECT_EQ(check_attention<double>({{6, 1, 8, 4}, {{9, 3}}, 88}), "");
}

// T5's distance bias, and cross-attention.
TEST(AttentionKernel, DistanceBiasAndCrossAttention) {
  AttentionShape s{4, 2, 8, 4};
  s.bias = true;
  EXPECT_EQ(check_attention<float>({s, {{60, 5}, {2, 3}}, 92}), "");
  EXPECT_EQ(check_attention<BFloat16>({s, {{270, 2}}, 93}), "");
  s.bias = false;
  s.cross = true;
  EXPECT_EQ(check_attention<float>({s, {{30, 5}, {7, 3}}, 94}), "");
}

TEST(AttentionKernel, GridFollowsFromTheRows) {
  RowView rows;
  rows.most_keys = kSplitKeys;
  const auto cut = [&](int together, int group) {
    rows.together = together;
    return AttentionGrid::of(rows, group, 16);
  };
  EXPECT_EQ(cut(1, 1).splits, 1);
  EXPECT_EQ(cut(1, 4).block_rows, 1);
  EXPECT_EQ(cut(64, 4).block_rows, 4);
  EXPECT_EQ(cut(3, 1).block_rows, 3);
  EXPECT_EQ(cut(64, 20).head_parts, 2);
  EXPECT_EQ(cut(64, 20).block_heads, 10);
  EXPECT_EQ(cut(64, 20).block_rows, 1);
  rows.most_keys = kSplitKeys + 1;
  EXPECT_EQ(cut(1, 1).splits, 2);
}

// Parts of a launch fit the given memory, unless one block's rows need more.
TEST(AttentionKernel, SlicesFollowFromTheMemory) {
  RowView rows;
  rows.rows = 100;
  rows.together = 4;
  rows.most_keys = 2 * kSplitKeys;
  constexpr int64_t kRowBytes = int64_t{8} * 2 * (30 + 2) * 4;
  const auto slice = [&](int64_t bytes) {
    return attention_grid<float>(rows, {8, 8, 30}, bytes).slice_rows;
  };
  EXPECT_EQ(slice(100 * kRowBytes), 100);
  EXPECT_EQ(slice(100 * kRowBytes - 1), 96);
  EXPECT_EQ(slice(8 * kRowBytes), 8);
  EXPECT_EQ(slice(8 * kRowBytes - 1), 4);
  EXPECT_EQ(slice(3 * kRowBytes), 3) << "blocks of fewer rows";
  EXPECT_EQ(slice(1), 1);
  rows.most_keys = kSplitKeys;
  EXPECT_EQ(slice(1), 100) << "one split has no parts";
}

TEST(AttentionKernel, InSlices) {
  for (const int64_t bytes : {int64_t{1}, int64_t{3000}}) {
    const LayerView layer{.most_bytes = bytes};
    EXPECT_EQ(check_attention<float>({{4, 2, 8, 16}, {{90, 13}, {200, 1}, {3, 4}}, 97}, layer), "");
    EXPECT_EQ(check_attention<Half>({{2, 2, 8, 16}, {{150, 21}}, 98}, layer), "");
  }
}

// Windows that begin or end within a split, at its border, and for some rows of a block only.
TEST(AttentionKernel, WindowsAcrossSplits) {
  uint64_t seed = 200;
  for (const int window : {1, kSplitKeys - 1, kSplitKeys, kSplitKeys + 1, 2 * kSplitKeys + 5}) {
    for (const int context : {kSplitKeys - 3, 2 * kSplitKeys, 3 * kSplitKeys + 7}) {
      const AttentionShape s{3, 1, 16, 16};
      EXPECT_EQ(check_attention<BFloat16>({s, {{context, 9}, {5, 1}}, ++seed}, {window, 0}), "");
      EXPECT_EQ(check_attention<float>({s, {{context, 6}}, ++seed}, {window, 2}), "");
    }
  }
}

// More splits than a block of the merge has threads; heads of odd and of many words.
TEST(AttentionKernel, OverManySplits) {
  const int context = kMergeThreads * kSplitKeys + 70;
  EXPECT_EQ(check_attention<BFloat16>({{1, 1, 8, 16}, {{context, 1}}, 99}), "");
  EXPECT_EQ(check_attention<float>({{2, 1, 7, 16}, {{9 * kSplitKeys, 2}}, 100}), "");
  EXPECT_EQ(check_attention<float>({{2, 1, 80, 16}, {{5 * kSplitKeys, 1}, {70, 2}}, 101}), "");
  EXPECT_EQ(check_attention<Half>({{1, 1, 255, 16}, {{2 * kSplitKeys, 1}}, 102}), "");
  EXPECT_EQ(check_attention<double>({{1, 1, kMaxHeadDim, 16}, {{2 * kSplitKeys, 1}}, 103}), "");
}

TEST(AttentionKernel, WithTheLargestHeads) {
  EXPECT_EQ(check_attention<float>({{2, 1, 64, 16}, {{40, 3}}, 89}), "");
  EXPECT_EQ(check_attention<float>({{2, 1, kMaxHeadDim, 16}, {{20, 2}}, 90}), "");
}

// A row's result depends on neither its batch nor the order of threads.
void expect_batch_invariant(const AttentionCase& c) {
  const AttentionShape& s = c.shape;
  const int64_t q_width = int64_t{s.heads} * s.head_dim;
  const int64_t width = q_width + int64_t{2} * s.kv_heads * s.head_dim;
  const auto pages = c.store<float>();
  const int64_t size = static_cast<int64_t>(pages.values.size());
  const DeviceArray<float> keys("keys", random_as<float>(size, 1));
  const DeviceArray<float> values("values", random_as<float>(size, 2));
  const auto run = [&](const std::vector<int>& which) {
    RowColumns columns;
    const DeviceArray<float> qkv("qkv", static_cast<int64_t>(which.size()) * width);
    for (size_t i = 0; i < which.size(); ++i) {
      columns.append(c.columns, which[i]);
      for (int64_t j = 0; j < q_width; ++j) {
        qkv.set(static_cast<int64_t>(i) * width + j,
                static_cast<float>(c.q[static_cast<size_t>(which[i] * q_width + j)]));
      }
    }
    const DeviceArray<float> out("out", static_cast<int64_t>(which.size()) * q_width);
    RowView view = c.view_of(columns);
    view.most_keys = columns.most_keys();
    view.together = RowColumns::together(columns.table);
    attend<float>(out, qkv, width, view, {s.heads, s.kv_heads, s.head_dim, keys, values},
                  c.scale());
    return out.numbers();
  };
  std::vector<int> every(static_cast<size_t>(c.rows()));
  std::iota(every.begin(), every.end(), 0);
  const std::vector<double> all = run(every);
  for (int r = 0; r < c.rows(); ++r) {
    emulator::seed(static_cast<uint64_t>(100 + r));
    const std::vector<double> alone = run({r});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + r * q_width)) << r;
  }
}

TEST(AttentionKernel, IsBatchInvariant) {
  expect_batch_invariant({{4, 2, 32, 4}, {{260, 3}, {5, 2}}, 91});
  // One query, a few and many, which variants of the kernel process.
  expect_batch_invariant({{2, 2, 32, 4}, {{260, 7}, {150, 1}}, 104});
  expect_batch_invariant({{2, 2, 40, 16}, {{130, 4}}, 105});
}

// Counted as in docs/reports/cuda_step.md.
TEST(Launches, AreAsDocumented) {
  const auto launches = [](const std::function<std::string()>& check) {
    const int64_t before = emulator::launches();
    EXPECT_EQ(check(), "");
    return emulator::launches() - before;
  };
  EXPECT_EQ(
      launches([] { return check_attention<float>({{2, 1, 4, 16}, {{kSplitKeys - 1, 1}}, 95}); }),
      1);
  EXPECT_EQ(launches([] { return check_attention<float>({{2, 1, 4, 16}, {{kSplitKeys, 1}}, 96}); }),
            2);
  EXPECT_EQ(launches([] { return check_moves<uint4>({}, 8, 97); }), 1);
}

TEST(ReadoutKernel, MatchesTheCpu) {
  uint64_t seed = 0;
  // Rows of odd width begin at any address; some have several words per thread.
  for (const int width : {1, 2, 3, 5, 15, 16, 17, 300, 1023, 1024, 1030, 2100, 9001}) {
    EXPECT_EQ(check_readout(width, ++seed), "");
  }
}

// More blocks of sums than thread groups, so that groups process several.
TEST(ReadoutKernel, ChoosesTokens) {
  for (uint64_t seed = 0; seed < 3; ++seed) EXPECT_EQ(check_choices(seed), "");
}

TEST(ReadoutKernel, OverManyBlocks) {
  EXPECT_EQ(check_readout((kSumGroups + 1) * kSumBlock + 5, 40), "");
}

CutRow random_row(int most, std::mt19937_64& random) {
  const auto one_of = [&](std::initializer_list<double> all) {
    return *(all.begin() + static_cast<std::ptrdiff_t>(random() % all.size()));
  };
  CutRow row;
  row.kind = std::vector{RowKind::kPlain, RowKind::kTies, RowKind::kHoles, RowKind::kNan,
                         RowKind::kEqual}[random() % 5];
  row.vocab = 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
  row.changes = static_cast<int>(one_of({0, 1, 10, 0.5 * most, 1.0 * most}));
  row.drafts = static_cast<int>(one_of({0, 1, kMostRowDrafts}));
  row.inverse_temperature = static_cast<float>(one_of({0.01, 0.5, 1, 4, 1e30}));
  row.top_k = static_cast<int>(one_of({0, 0, 1, 3, 40, 0.5 * most, 2000}));
  row.top_p = static_cast<float>(one_of({1, 1e-6, 0.3, 0.9, 0.999, 0.9999999}));
  row.min_reach = one_of({RowQuestion::kNoReach, RowQuestion::kNoReach, 0, -0.1, -2, -1e39});
  return row;
}

TEST(ReadoutKernel, CutsAsTheCpu) {
  std::mt19937_64 random(21);
  for (uint64_t seed = 0; seed < (test::kSanitized ? 2 : 8); ++seed) {
    EXPECT_EQ(check_cuts(seed), "");
    std::vector<CutRow> rows;
    for (const int most : {1, 20, 400, 3000}) rows.push_back(random_row(most, random));
    EXPECT_EQ(check_cut_rows(rows, seed), "");
  }
}

// Every token is banned; more ties than are gathered; more tokens near the edge than are gathered.
TEST(ReadoutKernel, CutsRowsOfOneKind) {
  EXPECT_EQ(check_cut_rows({{.kind = RowKind::kEqual, .vocab = 40, .top_p = 0.9f},
                            {.kind = RowKind::kNothing, .vocab = 40, .changes = 40, .top_k = 3}},
                           30),
            "");
  EXPECT_EQ(check_cut_rows({{.kind = RowKind::kEqual, .vocab = 3 * kGathered, .top_p = 0.9f},
                            {.kind = RowKind::kEqual, .vocab = 3 * kGathered, .top_k = 5}},
                           31),
            "");
  EXPECT_EQ(check_cut_rows({{.vocab = 3 * kGathered, .inverse_temperature = 0.01f, .top_p = 0.8f},
                            {.vocab = 3 * kGathered, .top_k = 2 * kGathered, .top_p = 0.7f}},
                           32),
            "");
}

// Rows divided among thread blocks; some parts are past a row's vocabulary.
TEST(ReadoutKernel, DividedRowsHaveTheSameAnswers) {
  std::mt19937_64 random(22);
  EXPECT_EQ(check_cuts(50, kSumBlock), "");
  for (const int width : {1000, 1024, 1025, 4 * kSumBlock + 3}) {
    EXPECT_EQ(check_readout(width, static_cast<uint64_t>(width), kSumBlock), "");
  }
  for (uint64_t seed = 0; seed < (test::kSanitized ? 1 : 3); ++seed) {
    std::vector<CutRow> rows;
    for (const int most : {20, 3000, 5000}) rows.push_back(random_row(most, random));
    EXPECT_EQ(check_cut_rows(rows, seed, kSumBlock), "");
  }
  EXPECT_EQ(check_cut_rows({{.vocab = 5000, .changes = 900, .top_p = 0.9f}, {.vocab = 4100}}, 51,
                           2 * kSumBlock),
            "");
}

TEST(ReadoutKernel, DividesFewLongRows) {
  EXPECT_EQ(read_split(1, 32000).tokens, 0);
  EXPECT_EQ(read_split(1, 128256).parts, 8);
  EXPECT_EQ(read_split(16, 128256).parts, 8);
  EXPECT_EQ(read_split(17, 128256).tokens, 0);
  EXPECT_EQ(read_split(8, kMostReadVocab).parts, 16);
}

TEST(ReadoutKernel, CutsALongRow) {
  EXPECT_EQ(check_cut_rows({{.vocab = 128256, .changes = 700, .top_p = 0.9f}}, 33,
                           read_split(1, 128256).tokens),
            "");
}

// The arithmetic of sampling equals race.h for every word, and exp equals lanes.h.
TEST(ReadoutKernel, ComputesTheBitsOfTheCpu) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const auto word = i < 40 ? uint32_t{1} << (i % 32) : static_cast<uint32_t>(random());
    ASSERT_EQ(race_exponential(word), sampling::exponential(word)) << word;
    const float x = -static_cast<float>(random() % 1000000) * 1e-4f;
    ASSERT_EQ(exp_nonpositive(x), sampling::exp_nonpositive(x)) << x;
  }
}

TEST(MoveKernel, BetweenPoolsAndWithinOne) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const bool within : {true, false}) {
      EXPECT_EQ(check_moves<int16_t>({.words = 5, .within = within}, 6, seed), "");
      EXPECT_EQ(check_moves<int32_t>({.less_layers = 1, .within = within}, 6, seed), "");
      EXPECT_EQ(check_moves<uint4>({.words = 16, .within = within}, 4, seed), "");
    }
  }
}

TEST(MoveKernel, OfOneRowWiderThanABlock) {
  EXPECT_EQ(check_moves<uint4>({.layers = 1, .heads = 1, .words = 300, .page_rows = 2}, 3, 1), "");
}

TEST(GatherKernel, CopiesTheRowsOfOneSequence) {
  uint64_t seed = 0;
  for (const int rows : {1, 4, 9, 31}) {
    EXPECT_EQ(check_gather<int32_t>({}, rows, ++seed), "");
    EXPECT_EQ(check_gather<uint4>({.words = 16}, rows, ++seed), "");
  }
  EXPECT_EQ(check_gather<uint4>({.all_heads = 1, .first_head = 0, .heads = 1}, 300, 7), "");
}

TEST(MoveKernel, UsesTheLargestWord) {
  EXPECT_EQ(word_bytes(256), 16);
  EXPECT_EQ(word_bytes(40), 4);
  EXPECT_EQ(word_bytes(10), 2);
}

}  // namespace
}  // namespace tandem::cuda
