#include "engine/decode/pacing/draft_length.h"

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

Seen run(DraftLength& length, Device on, int tokens) {
  Seen seen;
  while (seen.tokens < tokens) {
    const int gamma = length.gamma();
    const int accepted = std::min(gamma, on.kept);
    const double seconds = 1 + gamma * on.draft;
    length.observe(gamma, accepted, seconds);
    seen.seconds += seconds;
    seen.tokens += accepted + 1;
    seen.drafts += gamma;
    seen.drafted += gamma > 0;
    seen.last = gamma;
  }
  return seen;
}

TEST(DraftLength, DraftsThatAlwaysFailCostNextToNothing) {
  for (const double draft : {0.05, 0.2, 0.45, 1.0}) {
    DraftLength length(Pace::kFastest, 8);
    EXPECT_LT(run(length, {draft, 0}, 256).seconds, 256 * 1.04) << draft;
  }
}

TEST(DraftLength, DraftsThatAlwaysFitComeNearTheIdeal) {
  for (const double draft : {0.05, 0.2, 0.45}) {
    DraftLength length(Pace::kFastest, 8);
    const Seen seen = run(length, {draft, 8}, 256);
    EXPECT_GT(seen.speed(), 0.9 * 9 / (1 + 8 * draft)) << draft;
  }
}

TEST(DraftLength, GammaIsTheOneThatMakesMostTokensInASecond) {
  // The first of them is kept, the others never are.
  const auto gamma = [](double draft) {
    DraftLength length(Pace::kFastest, 8);
    return run(length, {draft, 1}, 400).last;
  };
  EXPECT_EQ(gamma(1.2), 0);
  EXPECT_EQ(gamma(0.6), 1);
  EXPECT_GT(gamma(0.01), 2);
}

TEST(DraftLength, FixedIsAlwaysTheSame) {
  DraftLength length(Pace::kFixed, 4);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(length.gamma(), 4);
    length.observe(4, i % 2, 10);
  }
}

TEST(DraftLength, AdaptiveFollowsTheAcceptLength) {
  DraftLength length(Pace::kAdaptive, 8);
  EXPECT_EQ(length.gamma(), 8);
  run(length, {0.2, 2}, 100);
  EXPECT_EQ(length.gamma(), 3);
  run(length, {10, 0}, 40);
  EXPECT_EQ(length.gamma(), 1) << "never fewer";
  for (int i = 0; i < 20; ++i) length.observe(0, 0, 1);
  EXPECT_EQ(length.gamma(), 1) << "an incomplete round is not counted";
  run(length, {10, 8}, 200);
  EXPECT_EQ(length.gamma(), 8) << "whatever drafts cost";
}

TEST(DraftLength, FollowsWhatChanges) {
  DraftLength length(Pace::kFastest, 8);
  EXPECT_LT(run(length, {0.3, 0}, 500).drafted, 30);
  EXPECT_GT(run(length, {0.3, 8}, 2000).speed(), 1.8) << "drafts are kept from here on";
  EXPECT_LT(run(length, {2.0, 8}, 500).seconds, 550) << "and here rows cost more";
}

// A draft model that has much to catch up takes long for it, once.
TEST(DraftLength, CatchingUpIsNotHeldAgainstDrafts) {
  DraftLength length(Pace::kFastest, 4);
  int drafted = 0, behind = 100;
  for (int i = 0; i < 300; ++i) {
    const int gamma = length.gamma();
    const double catching_up = gamma > 0 && behind > DraftLength::kBehind ? 100 : 0;
    length.observe(gamma, gamma, 1 + 0.2 * gamma + catching_up, behind);
    drafted += gamma > 0;
    behind = gamma > 0 ? 1 : behind + 1;
  }
  EXPECT_GT(drafted, 280);
}

// Where catching up costs a tenth of a round for each token there are fewer and fewer trials.
TEST(DraftLength, TrialsTakeASmallShareOfTheTime) {
  DraftLength length(Pace::kFastest, 8);
  int behind = 1;
  double seconds = 0;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    const int gamma = length.gamma();
    const double round = 1 + 0.3 * gamma + (gamma > 0 ? 0.1 * behind : 0);
    length.observe(gamma, 0, round, behind);
    seconds += round;
    behind = gamma > 0 ? 1 : behind + 1;
  }
  EXPECT_LT(seconds, 1.12 * kRounds);
}

// Another program has the processor while the first round without drafts runs.
TEST(DraftLength, OneDisturbedRoundDoesNotMakeDraftsLookCheap) {
  DraftLength length(Pace::kFastest, 8);
  double seconds = 0;
  bool disturbed = false;
  for (int i = 0; i < 300; ++i) {
    const int gamma = length.gamma();
    const double round = 1 + 0.5 * gamma;
    const bool now = gamma == 0 && !std::exchange(disturbed, gamma == 0 || disturbed);
    length.observe(gamma, 0, now ? 6 * round : round);
    seconds += round;
  }
  EXPECT_TRUE(disturbed);
  EXPECT_LT(seconds, 1.15 * 300);
}

TEST(DraftLength, WhereNothingCostsTimeItDrafts) {
  DraftLength length(Pace::kFastest, 8);
  int drafted = 0;
  for (int i = 0; i < 1000; ++i) {
    drafted += length.gamma() == 8;
    length.observe(length.gamma(), 0, 0);
  }
  EXPECT_GT(drafted, 900);
}

// A lookup that finds nothing is a round without drafts. It does not count as a failed draft.
TEST(DraftLength, NoDraftsAreNoTrialOfThem) {
  DraftLength length(Pace::kFastest, 8);
  int asked = 0;
  for (int i = 0; i < 1000; ++i) {
    asked += length.gamma() > 0;
    length.observe(0, 0, 1);
  }
  EXPECT_EQ(asked, 1000);
}

}  // namespace
}  // namespace tandem
