#include "engine/sched/batch_cost.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(BatchCost, IsByRowsAsLongAsBatchesAreAlike) {
  BatchCost cost;
  EXPECT_DOUBLE_EQ(cost.shares(8, 3).of(2), 0.25) << "nothing is known";
  for (int i = 0; i < 100; ++i) cost.observe(8, 3);
  EXPECT_DOUBLE_EQ(cost.shares(8, 3).of(2), 0.25);
}

TEST(BatchCost, ARowIsChargedForItselfAndTheRestIsShared) {
  BatchCost cost;
  for (int i = 0; i < 100; ++i) {
    const int rows = i % 7 + 1;
    cost.observe(rows, 1 + 0.1 * rows);
  }
  // A batch of 10 rows in 4 works takes 2 s: 1 s for the weights.
  EXPECT_NEAR(2 * cost.shares(10, 4).of(1), 0.25 + 0.1, 1e-9);
  EXPECT_NEAR(2 * cost.shares(10, 4).of(7), 0.25 + 0.7, 1e-9);
  EXPECT_NEAR(3 * cost.shares(10, 4).of(1) + cost.shares(10, 4).of(7), 1, 1e-9);
}

TEST(BatchCost, RowsAloneOrWeightsAloneMayCost) {
  BatchCost rows, weights, free;
  for (int n = 1; n < 50; ++n) {
    rows.observe(n, 0.1 * n);
    weights.observe(n, 1);
    free.observe(n, 0);
  }
  EXPECT_NEAR(rows.shares(12, 2).of(3), 0.25, 1e-9);
  EXPECT_NEAR(weights.shares(12, 2).of(3), 0.5, 1e-9);
  EXPECT_DOUBLE_EQ(free.shares(12, 2).of(3), 0.25);
}

// Shares are not negative, even if noise makes larger batches faster.
TEST(BatchCost, SharesAreNeverNegative) {
  BatchCost cost;
  for (int n = 1; n < 50; ++n) cost.observe(n, 10 - 0.1 * n);
  EXPECT_GE(cost.shares(40, 2).of(1), 0);
  EXPECT_LE(cost.shares(40, 2).of(39), 1);
}

TEST(BatchCost, FollowsWhatChanges) {
  BatchCost cost;
  for (int i = 0; i < 300; ++i) cost.observe(i % 7 + 1, 1);
  for (int i = 0; i < 600; ++i) cost.observe(i % 7 + 1, 0.1 * (i % 7 + 1));
  EXPECT_NEAR(cost.shares(8, 2).of(1), 1.0 / 8, 0.01);
}

}  // namespace
}  // namespace tandem
