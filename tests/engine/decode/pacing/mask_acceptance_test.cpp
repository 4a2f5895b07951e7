#include "engine/decode/pacing/mask_acceptance.h"

#include <gtest/gtest.h>

#include "tests/engine/decode/pacing/simulated_masks.h"

namespace tandem {
namespace {

TEST(MaskAcceptance, BeginsWithAPriorAndFollowsObservations) {
  MaskAcceptance hits(3, 4);
  EXPECT_DOUBLE_EQ(hits.rate(0, 0), MaskAcceptance::kFirst);
  EXPECT_LT(hits.rate(1, 0), hits.rate(0, 0));
  EXPECT_LT(hits.rate(0, 1), hits.rate(0, 0));
  for (int i = 0; i < 400; ++i) hits.observe(0, i % 4 == 0 ? 2 : -1, 4);
  EXPECT_NEAR(hits.rate(0, 2), 0.25, 0.03);
  EXPECT_NEAR(hits.rate(0, 0), 0, 0.03);
  EXPECT_LT(hits.rate(2, 0), 0.05) << "masks without observations follow the one before them";
  for (int i = 0; i < 400; ++i) hits.observe(2, 0, 4);
  EXPECT_GT(hits.rate(2, 0), 0.9);
  hits.discount();
  for (int i = 0; i < 12; ++i) hits.observe(2, -1, 4);
  EXPECT_LT(hits.rate(2, 0), 0.65);
}

TEST(MaskAcceptance, StartsWithTheStatisticsOfOthers) {
  MaskAcceptance others(4, 4);
  for (int i = 0; i < 400; ++i) others.observe(0, i % 2 == 0 ? 0 : -1, 2);
  MaskAcceptance hits(2, 3, &others);
  EXPECT_NEAR(hits.rate(0, 0), 0.5, 0.03);
  EXPECT_NEAR(hits.rate(0, 1), 0, 0.01);
  EXPECT_NEAR(hits.rate(0, 2),
              MaskAcceptance::kFirst * MaskAcceptance::kNextRank * MaskAcceptance::kNextRank, 1e-9)
      << "the third candidate has no observations";
  for (int i = 0; i < 100; ++i) hits.observe(0, 0, 3);
  EXPECT_GT(hits.rate(0, 0), 0.85);
  for (int i = 0; i < 400; ++i) others.observe(1, 2, 3);
  EXPECT_LT(hits.rate(1, 2), 0.2);
  hits.estimate();
  EXPECT_GT(hits.rate(1, 2), 0.9) << "what others have seen since";
}

// Against passes that are played.
TEST(ExpectedTokens, AreThoseOfManyPasses) {
  for (const BitaTreeKind kind : kTreeKinds) {
    for (const int masks : {1, 2, 4}) {
      const BitaTree tree = make_bita_tree(kind, masks, 3);
      MaskAcceptance hits(masks, 3);
      std::vector<std::vector<double>> rates;
      for (int m = 0; m < masks; ++m) {
        for (int i = 0; i < 600; ++i)
          hits.observe(m, i % 10 < 5 ? 0 : i % 10 < 7 ? 1 : i % 10 - 7, 3);
        auto& by_rank = rates.emplace_back();
        for (int r = 0; r < 3; ++r) by_rank.push_back(hits.rate(m, r));
      }
      SimulatedMasks text(rates, 7);
      SimulatedCandidates predicted;
      int64_t tokens = 0;
      constexpr int kPasses = 40000;
      for (int i = 0; i < kPasses; ++i) {
        tokens += simulate_pass(tree, text, &predicted, [](int, int) {}).tokens;
      }
      EXPECT_NEAR(expected_tokens(tree, hits), static_cast<double>(tokens) / kPasses, 0.03)
          << static_cast<int>(kind) << ", " << masks;
    }
  }
}

}  // namespace
}  // namespace tandem
