#include "engine/decode/pacing/exploration.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using Round = Exploration::Round;

TEST(Exploration, RoundsWithDraftsHaveOneWithoutInBetween) {
  Exploration exploration(2, 96);
  int plain = 0;
  Round round = Round::kBest;
  for (int i = 0; i < 970; ++i) {
    round = exploration.observe(round != Round::kPlain, 0, /*pays=*/true);
    plain += round == Round::kPlain;
  }
  EXPECT_GE(plain, 10);
  EXPECT_LE(plain, 15) << "the first few come sooner";
}

TEST(Exploration, FailedTrialsBecomeRare) {
  Exploration exploration(2, 32);
  int drafted = 0, late = 0;
  Round round = Round::kBest;
  for (int i = 0; i < 8000; ++i) {
    const bool drafts = round != Round::kPlain;
    drafted += drafts;
    late += drafts && i >= 4000;
    round = exploration.observe(drafts, drafts ? 0.5 : 0, /*pays=*/false);
  }
  EXPECT_GT(drafted, 10);
  EXPECT_LE(late, 10) << "two rounds in about 1,024";
}

TEST(Exploration, ATrialIsForAllStreams) {
  Exploration exploration(2, 32);
  constexpr int kStreams = 4;
  int since = 0;
  Round round = Round::kPlain;
  while (round != Round::kTrial) {
    round = exploration.observe(false, 0, /*pays=*/false, kStreams);
    ASSERT_LT(++since, 1000);
  }
  EXPECT_GE(since, Exploration::kPause * kStreams);
  int trial = 0;
  for (; round == Round::kTrial; ++trial) round = exploration.observe(true, 0, false, kStreams);
  EXPECT_EQ(trial, 2 * kStreams);
}

}  // namespace
}  // namespace tandem
