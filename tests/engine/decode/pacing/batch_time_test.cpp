#include "engine/decode/pacing/batch_time.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// Eight rows are free.
double staircase(int rows) { return 1 + (rows > 8 ? 0.25 * (rows - 8) : 0); }

TEST(BatchTime, IsThatOfBatchesOfSimilarSize) {
  BatchTime time;
  EXPECT_FALSE(time.known());
  for (int i = 0; i < 5; ++i) {
    for (int rows = 1; rows <= 40; ++rows) time.observe(rows, staircase(rows));
  }
  EXPECT_TRUE(time.known());
  for (const int rows : {1, 2, 5, 8, 10, 16, 24, 32}) {
    EXPECT_NEAR(time.seconds(rows), staircase(rows), 0.06 * staircase(rows)) << rows;
  }
  EXPECT_NEAR(time.row(2), 0, 1e-9);
  EXPECT_NEAR(time.row(12), 0.25, 0.03);
  EXPECT_NEAR(time.seconds(80), staircase(80), 0.1 * staircase(80)) << "beyond what was seen";
}

TEST(BatchTime, LiesBetweenItsNeighborsWhereNothingWasSeen) {
  BatchTime time;
  time.observe(4, 1.2);
  time.observe(8, 2.0);
  EXPECT_DOUBLE_EQ(time.seconds(6), 1.6);
  EXPECT_DOUBLE_EQ(time.seconds(5), 1.4);
}

// The weights are most of a small batch.
TEST(BatchTime, BelowTheSmallestSizeRowsAreNotAllThatCosts) {
  BatchTime time;
  time.observe(1, 9);
  EXPECT_DOUBLE_EQ(time.seconds(1), 9);
  EXPECT_DOUBLE_EQ(time.seconds(2), 10);
  EXPECT_DOUBLE_EQ(time.seconds(10), 18);
  BatchTime prompts;
  prompts.observe(256, 0.66);
  prompts.observe(410, 1.05);
  EXPECT_NEAR(prompts.seconds(1), 0.0225, 1e-3);
  EXPECT_NEAR(prompts.seconds(16), 0.06, 1e-3);
}

TEST(BatchTime, MoreRowsNeverTakeLess) {
  BatchTime time;
  for (const auto& [rows, seconds] : {std::pair(1, 1.0), {2, 1.3}, {3, 1.1}, {4, 1.2}}) {
    time.observe(rows, seconds);
  }
  for (int quarter = 4; quarter < 32; ++quarter) {
    const double rows = quarter / 4.0;
    EXPECT_LE(time.seconds(rows), time.seconds(rows + 0.25)) << rows;
    EXPECT_GE(time.row(rows), 0) << rows;
  }
}

TEST(BatchTime, OldTimesFadeTowardsThoseOfCheapRows) {
  BatchTime time;
  time.observe(1, 9);
  for (int i = 0; i < 5; ++i) time.observe(4, 36);
  EXPECT_NEAR(time.seconds(4), 36, 0.5);
  for (int i = 0; i < 256; ++i) time.observe(1, 9);
  EXPECT_NEAR(time.seconds(4), 12 + 24.0 / 2, 0.5);
  for (int i = 0; i < 2560; ++i) time.observe(1, 9);
  EXPECT_NEAR(time.seconds(4), 12, 0.1);
  time.observe(4, 18);
  EXPECT_DOUBLE_EQ(time.seconds(4), 18) << "the first one after a long time counts";
}

TEST(BatchTime, OneDisturbedBatchDoesNotCount) {
  BatchTime time;
  for (int i = 0; i < 10; ++i) time.observe(4, i == 7 ? 100 : 1);
  EXPECT_DOUBLE_EQ(time.seconds(4), 1);
}

TEST(BatchTime, FollowsWhatChanges) {
  BatchTime time;
  for (int i = 0; i < 100; ++i) time.observe(4, 1);
  for (int i = 0; i < 4; ++i) time.observe(4, 2);
  EXPECT_DOUBLE_EQ(time.seconds(4), 2);
}

// The processor's clock changes between batches of two sizes.
TEST(BatchTime, AChangeOfSpeedAppliesToAllSizes) {
  BatchTime time;
  for (int i = 0; i < 8; ++i) {
    for (const int rows : {4, 8, 12}) time.observe(rows, staircase(rows));
  }
  for (int i = 0; i < 20; ++i) time.observe(8, 1.4 * staircase(8));
  EXPECT_NEAR(time.seconds(8), 1.4 * staircase(8), 1e-9);
  EXPECT_NEAR(time.seconds(12), 1.4 * staircase(12), 0.05 * staircase(12));
  EXPECT_NEAR(time.row(8), 1.4 * 0.25, 0.02);
}

TEST(BatchTime, AChangeOfOneSizeIsNotTheSpeed) {
  BatchTime time;
  for (int i = 0; i < 40; ++i) {
    time.observe(8, 1);
    time.observe(12, i < 20 ? 2 : 3);
  }
  EXPECT_NEAR(time.seconds(8), 1, 1e-9);
  EXPECT_NEAR(time.seconds(12), 3, 0.05);
}

// Times of prompts depend on their contexts.
TEST(BatchTime, PromptsDoNotShowTheSpeed) {
  BatchTime time;
  for (int i = 0; i < 10; ++i) time.observe(4, 1);
  for (int i = 0; i < 20; ++i) time.observe(200, i < 10 ? 10 : 20);
  EXPECT_NEAR(time.seconds(4), 1, 1e-9);
}

// Prompts are the only batches of more than 32 rows, and their rows cost half as much.
TEST(BatchTime, RowsOfLargeBatchesCostWhatThoseBeforeThemDo) {
  BatchTime time;
  for (const int rows : {1, 8, 16, 32}) time.observe(rows, 1 + rows);
  time.observe(160, 33 + 64);
  EXPECT_NEAR(time.row(32), 1, 1e-2);
  EXPECT_NEAR(time.added(32, 16), 16, 0.1);
}

TEST(BatchTime, MayBeZero) {
  BatchTime time;
  time.observe(1, 0);
  time.observe(5, 0);
  EXPECT_EQ(time.seconds(9), 0);
  EXPECT_EQ(time.row(3), 0);
}

}  // namespace
}  // namespace tandem
