#include "engine/decode/pacing/cost_model.h"

#include <gtest/gtest.h>

#include "tests/engine/decode/pacing/simulated_masks.h"

namespace tandem {
namespace {

TEST(CostModel, IsWhatWasSeenOfEachSize) {
  CostModel cost;
  cost.observe(3, 5);
  EXPECT_FALSE(cost.known()) << "nothing to hold it against";
  cost.observe(0, 10);
  for (int i = 0; i < 40; ++i) cost.observe(3, 11);
  ASSERT_TRUE(cost.known());
  EXPECT_NEAR(cost.curve(3), 11, 0.1);
  EXPECT_NEAR(cost.curve(12), 14, 0.3) << "sizes without observations are extrapolated";
  for (int i = 0; i < 40; ++i) cost.observe(12, 22);
  EXPECT_NEAR(cost.curve(12), 22, 0.1);
  EXPECT_NEAR(cost.curve(3), 11, 0.4);
  EXPECT_NEAR(cost.curve(6), 14.7, 0.6) << "between the two";
  EXPECT_NEAR(cost.curve(24), 34, 1);
  EXPECT_EQ(cost.plain(), 10);
  for (int i = 0; i < 90; ++i) cost.observe(12, 16);
  EXPECT_NEAR(cost.curve(12), 16, 0.9) << "and they change";
  EXPECT_TRUE(cost.known(12));
  EXPECT_FALSE(cost.known(13));
  EXPECT_EQ(cost.reach(), 26) << "no more than twice the rows that were seen are tried";
}

// Of one kind there were many rounds, of the other a trial's few.
TEST(CostModel, FewRoundsDoNotLookLongerThanMany) {
  double all = 0;
  constexpr int kSeeds = 50;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimulatedNoise disturbed(seed);
    CostModel cost;
    for (int i = 0; i < 100; ++i) cost.observe(0, disturbed());
    for (int i = 0; i < 3; ++i) cost.observe(3, 1.1 * disturbed());
    all += cost.curve(3) / cost.plain();
  }
  EXPECT_NEAR(all / kSeeds, 1.1, 0.03);
}

}  // namespace
}  // namespace tandem
