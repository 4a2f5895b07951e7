#include "engine/decode/payoff.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// Rounds with drafts of `rounds`, where a round with them makes `tokens` at `cost`, and one without
// a token at a cost of 1.
int drafted_of(Payoff& payoff, int rounds, int tokens, double cost) {
  int drafted = 0;
  for (int i = 0; i < rounds; ++i) {
    const bool drafts = payoff.drafts();
    drafted += drafts;
    payoff.saw(drafts, drafts ? tokens : 1, drafts ? cost : 1);
  }
  return drafted;
}

TEST(Payoff, UnaskedItDraftsAlways) {
  Payoff payoff(false);
  EXPECT_EQ(drafted_of(payoff, 1000, 1, 100), 1000);
}

TEST(Payoff, WhatMakesMoreTokensInASecondIsDoneButForTrials) {
  Payoff good(true);
  EXPECT_GT(drafted_of(good, 1000, 3, 2), 950);
  Payoff bad(true);
  EXPECT_LT(drafted_of(bad, 1000, 3, 4), 50);
  Payoff none_kept(true);
  EXPECT_LT(drafted_of(none_kept, 1000, 1, 1.5), 50);
}

TEST(Payoff, FollowsWhatChanges) {
  Payoff payoff(true);
  EXPECT_LT(drafted_of(payoff, 500, 1, 2), 50);
  EXPECT_GT(drafted_of(payoff, 1000, 4, 2), 600) << "drafts are kept from here on";
  EXPECT_LT(drafted_of(payoff, 1000, 4, 8), 400) << "and here rows cost more";
}

// The first round of a trial has a draft model catch up.
TEST(Payoff, CatchingUpIsNotHeldAgainstDrafts) {
  Payoff payoff(true);
  int drafted = 0;
  bool before = false;
  for (int i = 0; i < 1000; ++i) {
    const bool drafts = payoff.drafts();
    drafted += drafts;
    payoff.saw(drafts, drafts ? 3 : 1, !drafts ? 1 : before ? 2 : 100);
    before = drafts;
  }
  EXPECT_GT(drafted, 900);
}

TEST(Payoff, WhereNothingCostsTimeItDrafts) {
  Payoff payoff(true);
  int drafted = 0;
  for (int i = 0; i < 1000; ++i) {
    drafted += payoff.drafts();
    payoff.saw(payoff.drafts(), 1, 0);
  }
  EXPECT_GT(drafted, 900);
}

// A lookup that finds nothing is a round without drafts.
TEST(Payoff, NoDraftsAreNoTrialOfThem) {
  Payoff payoff(true);
  int asked = 0;
  for (int i = 0; i < 1000; ++i) {
    asked += payoff.drafts();
    payoff.saw(false, 1, 1);
  }
  EXPECT_GT(asked, 400);
}

}  // namespace
}  // namespace tandem
