#include "engine/decode/payoff.h"

#include <gtest/gtest.h>

#include <utility>

namespace tandem {
namespace {

// A device where a round takes 1, and a draft `draft` more; of each round's drafts the first `kept`
// are kept.
struct Device {
  double draft;
  int kept;
};

struct Seen {
  double seconds = 0;
  int tokens = 0, drafts = 0, drafted = 0, last = 0;

  double speed() const { return tokens / seconds; }
};

Seen run(Payoff& payoff, Device on, int tokens) {
  Seen seen;
  while (seen.tokens < tokens) {
    const int gamma = payoff.gamma();
    const int accepted = std::min(gamma, on.kept);
    const double seconds = 1 + gamma * on.draft;
    payoff.saw(gamma, accepted, seconds);
    seen.seconds += seconds;
    seen.tokens += accepted + 1;
    seen.drafts += gamma;
    seen.drafted += gamma > 0;
    seen.last = gamma;
  }
  return seen;
}

TEST(Payoff, DraftsThatAlwaysFailCostNextToNothing) {
  for (const double draft : {0.05, 0.2, 0.45, 1.0}) {
    Payoff payoff(8, true);
    EXPECT_LT(run(payoff, {draft, 0}, 256).seconds, 256 * 1.04) << draft;
  }
}

TEST(Payoff, DraftsThatAlwaysFitComeNearTheIdeal) {
  for (const double draft : {0.05, 0.2, 0.45}) {
    Payoff payoff(8, true);
    const Seen seen = run(payoff, {draft, 8}, 256);
    EXPECT_GT(seen.speed(), 0.9 * 9 / (1 + 8 * draft)) << draft;
  }
}

TEST(Payoff, GammaIsTheOneThatMakesMostTokensInASecond) {
  // The first of them is kept, the others never are.
  const auto gamma = [](double draft) {
    Payoff payoff(8, true);
    return run(payoff, {draft, 1}, 400).last;
  };
  EXPECT_EQ(gamma(1.2), 0);
  EXPECT_EQ(gamma(0.6), 1);
  EXPECT_GT(gamma(0.01), 2);
}

TEST(Payoff, WithoutAdaptingItIsAllOrNone) {
  Payoff good(4, false), bad(4, false);
  EXPECT_EQ(run(good, {0.2, 4}, 320).last, 4);
  const Seen none = run(bad, {0.2, 0}, 320);
  EXPECT_EQ(none.last, 0);
  EXPECT_EQ(none.drafts, 4 * none.drafted);
}

TEST(Payoff, FollowsWhatChanges) {
  Payoff payoff(8, true);
  EXPECT_LT(run(payoff, {0.3, 0}, 500).drafted, 30);
  EXPECT_GT(run(payoff, {0.3, 8}, 2000).speed(), 1.8) << "drafts are kept from here on";
  EXPECT_LT(run(payoff, {2.0, 8}, 500).seconds, 550) << "and here rows cost more";
}

// A draft model that has much to catch up takes long for it, once.
TEST(Payoff, CatchingUpIsNotHeldAgainstDrafts) {
  Payoff payoff(4, true);
  int drafted = 0, behind = 100;
  for (int i = 0; i < 300; ++i) {
    const int gamma = payoff.gamma();
    const double catching_up = gamma > 0 && behind > Payoff::kBehind ? 100 : 0;
    payoff.saw(gamma, gamma, 1 + 0.2 * gamma + catching_up, behind);
    drafted += gamma > 0;
    behind = gamma > 0 ? 1 : behind + 1;
  }
  EXPECT_GT(drafted, 280);
}

// Where catching up costs a tenth of a round for each token there are fewer and fewer trials.
TEST(Payoff, TrialsTakeASmallShareOfTheTime) {
  Payoff payoff(8, true);
  int behind = 1;
  double seconds = 0;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    const int gamma = payoff.gamma();
    const double round = 1 + 0.3 * gamma + (gamma > 0 ? 0.1 * behind : 0);
    payoff.saw(gamma, 0, round, behind);
    seconds += round;
    behind = gamma > 0 ? 1 : behind + 1;
  }
  EXPECT_LT(seconds, 1.12 * kRounds);
}

// Another program has the processor while the first round without drafts runs.
TEST(Payoff, OneDisturbedRoundDoesNotMakeDraftsLookCheap) {
  Payoff payoff(8, true);
  double seconds = 0;
  bool disturbed = false;
  for (int i = 0; i < 300; ++i) {
    const int gamma = payoff.gamma();
    const double round = 1 + 0.5 * gamma;
    const bool now = gamma == 0 && !std::exchange(disturbed, gamma == 0 || disturbed);
    payoff.saw(gamma, 0, now ? 6 * round : round);
    seconds += round;
  }
  EXPECT_TRUE(disturbed);
  EXPECT_LT(seconds, 1.15 * 300);
}

TEST(Payoff, WhereNothingCostsTimeItDrafts) {
  Payoff payoff(8, true);
  int drafted = 0;
  for (int i = 0; i < 1000; ++i) {
    drafted += payoff.gamma() == 8;
    payoff.saw(payoff.gamma(), 0, 0);
  }
  EXPECT_GT(drafted, 900);
}

// A lookup that finds nothing is a round without drafts, and says nothing about them.
TEST(Payoff, NoDraftsAreNoTrialOfThem) {
  Payoff payoff(8, true);
  int asked = 0;
  for (int i = 0; i < 1000; ++i) {
    asked += payoff.gamma() > 0;
    payoff.saw(0, 0, 1);
  }
  EXPECT_EQ(asked, 1000);
}

}  // namespace
}  // namespace tandem
