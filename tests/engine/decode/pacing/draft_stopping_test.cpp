#include "engine/decode/pacing/draft_stopping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/engine/decode/pacing/simulated_drafts.h"

namespace tandem::simulated {
namespace {

constexpr int kRequests = 10;  // the first one knows nothing

// A request may bar drafts that the small model is not sure of. Where it is never sure, its passes
// are in vain, and become rare.
TEST(DraftStopping, DraftsThatAreBarredAreNotAskedForAgainAndAgain) {
  auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(8, stats, By::kSmall);
  const Device device({0.3, 0.05});
  int passes = 0, late = 0;
  for (int round = 0; round < 600; ++round) {
    stopping.begin_round(device.round(600 - round));
    if (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      EXPECT_FALSE(stopping.add_small(0.2F, /*least=*/0.5F));
      ++passes;
      if (round >= 300) ++late;
    }
    stopping.end_round(0);
  }
  EXPECT_GT(passes, 0);
  EXPECT_LT(late, 30);
}

// The best is chosen with hindsight, for each profile and each cost.
TEST(DraftStopping, IsNearlyAsFastAsTheBestFixedSettingForEachProfile) {
  for (const Profile& profile : kProfiles) {
    for (const Costs& costs : kCosts) {
      auto stats = std::make_shared<AcceptanceStats>();
      Counts counts;
      Places all;
      for (uint64_t request = 0; request < kRequests; ++request) {
        const Places text = text_of(profile, request, kLength);
        DraftStopping stopping(8, stats, By::kSmall);
        steer(stopping, text, costs, &counts);
        all.insert(all.end(), text.begin(), text.end());
      }
      // Where at most half of the places are easy and right, a bad start may switch the small model
      // off for long. It is then as fast as without drafts.
      const double plain =
          profile.easy * profile.easy_right <= 0.5 ? 1.01 * kRequests * kLength : 0;
      EXPECT_LT(counts.seconds, std::max(best_fixed(all, costs) / 0.92, plain))
          << profile.name << "; small " << costs.small << ", row " << costs.row;
    }
  }
}

TEST(DraftStopping, WhereDraftsFailItIsAtMostTwoPercentSlowerThanWithout) {
  for (const double small : {0.05, 0.27, 0.6, 1.5}) {
    auto stats = std::make_shared<AcceptanceStats>();
    Counts counts;
    for (uint64_t request = 0; request < kRequests; ++request) {
      DraftStopping stopping(8, stats, By::kSmall);
      steer(stopping, text_of(kProfiles[6], request, kLength), {small, 0.05}, &counts);
    }
    EXPECT_LT(counts.seconds, 1.02 * kRequests * kLength) << small;
  }
}

// One that learns alone has less time for it.
TEST(DraftStopping, ARequestAloneLosesLittleToo) {
  for (const Profile& profile : kProfiles) {
    const Places text = text_of(profile, 1, 600);
    Counts counts;
    DraftStopping stopping(8, nullptr, By::kSmall);
    steer(stopping, text, {0.27, 0.05}, &counts);
    EXPECT_LT(counts.seconds, best_fixed(text, {0.27, 0.05}) / 0.9) << profile.name;
  }
}

TEST(DraftStopping, FollowsTextsThatChange) {
  auto stats = std::make_shared<AcceptanceStats>();
  const Costs costs{0.27, 0.05};
  const auto run = [&](const Profile& profile, int requests) {
    Counts counts;
    for (int i = 0; i < requests; ++i) {
      DraftStopping stopping(8, stats, By::kSmall);
      steer(stopping, text_of(profile, static_cast<uint64_t>(i), kLength), costs, &counts);
    }
    return counts.seconds / (requests * kLength);
  };
  EXPECT_LT(run(kProfiles[6], 5), 1.03);
  EXPECT_LT(run(kProfiles[0], 12), 0.8) << "drafts are kept from here on";
  EXPECT_LT(run(kProfiles[6], 12), 1.06) << "and here no more";
}

// Costs change with the batch size: a draft costs less in a batch than alone.
TEST(DraftStopping, FollowsCostsThatChange) {
  auto stats = std::make_shared<AcceptanceStats>();
  const auto passes = [&](Costs costs) {
    Counts counts;
    for (uint64_t i = 0; i < 5; ++i) {
      DraftStopping stopping(8, stats, By::kSmall);
      steer(stopping, text_of(kProfiles[2], i, kLength), costs, &counts);
    }
    return static_cast<double>(counts.passes) / counts.rounds;
  };
  EXPECT_GT(passes({0.2, 0.02}), 2.5);
  EXPECT_LT(passes({0.3, 0.8}), 0.5);
  EXPECT_GT(passes({0.2, 0.02}), 0.5);
}

TEST(DraftStopping, ForcedDraftsAreFollowedByOthersAndNotJudged) {
  const auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(64, stats, By::kSmall);
  const Device device({0.2, 0.05});
  RecentRounds before;
  for (const int forced : {0, 3, 3}) {
    before = stats->drafts.with_small;
    stopping.begin_round(device.round(1000));
    for (int i = 0; i < forced; ++i) stopping.add_forced();
    ASSERT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
    stopping.observe_pass(1 + forced);
    ASSERT_TRUE(stopping.add_small(0.995F));
    EXPECT_EQ(stopping.next(40), DraftStopping::Next::kLookup);
    stopping.add_lookup(40);
    stopping.end_round(forced + 2);
  }
  const DraftAcceptance& seen = stats->drafts.acceptance;
  EXPECT_EQ(seen.observations(DraftAcceptance::small(0.995F)), 3);
  EXPECT_EQ(seen.observations(DraftAcceptance::next(DraftAcceptance::kAfterAll)), 3);
  EXPECT_EQ(seen.observations(DraftAcceptance::lookup(40, false)), 3);
  const RecentRounds& rounds = stats->drafts.with_small;
  EXPECT_DOUBLE_EQ(rounds.drafts, 2 + RecentRounds::kMemory * before.drafts);
  EXPECT_DOUBLE_EQ(rounds.tokens, 3 + RecentRounds::kMemory * before.tokens);
}

// A prompt that the small model reads once.
TEST(DraftStopping, MissedTextIsNoCostOfARound) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.2, 0.05});
  DraftStopping stopping(8, stats, By::kSmall);
  DraftStopping::Round round = device.round(kLength);
  round.behind = 150;
  stopping.begin_round(round);
  ASSERT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
  stopping.observe_pass(151);
  ASSERT_TRUE(stopping.add_small(0.99F));
  stopping.end_round(1);
  const RecentRounds& rounds = stats->drafts.with_small;
  EXPECT_LT(rounds.small_rows, 2 * rounds.small_passes);
}

// Drafts seem to fail after accepted ones, and else not. A round without drafts belongs to neither.
TEST(DraftStopping, ARoundWithoutDraftsIsFollowedByOneWith) {
  const auto stats = std::make_shared<AcceptanceStats>();
  const Device device({0.2, 0.05});
  stats->drafts.unspent = 0;  // no trials
  stats->drafts.with_small = {10, 18, 10, 10, 10};
  for (int i = 0; i < 40; ++i) {
    DraftAcceptance& shared = stats->drafts.acceptance;
    shared.observe(DraftAcceptance::next(DraftAcceptance::kAfterAll), i % 8 == 0, 1);
    shared.observe(DraftAcceptance::next(DraftAcceptance::kAfterSome), i % 8 > 0, 1);
  }
  DraftStopping stopping(8, stats, By::kSmall);
  stopping.begin_round(device.round(1000));
  ASSERT_TRUE(stopping.may_draft());
  EXPECT_EQ(stopping.next(0), DraftStopping::Next::kStop);
  stopping.end_round(0);
  stopping.begin_round(device.round(1000));
  ASSERT_TRUE(stopping.may_draft());
  EXPECT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
}

// The rounds that were expected do not change with the result of the first one.
TEST(DraftStopping, TheFirstRoundCountsOnce) {
  const Device device({0.2, 0.05});
  std::vector<RecentRounds> after;
  for (const int accepted : {0, 1}) {
    const auto stats = std::make_shared<AcceptanceStats>();
    DraftStopping stopping(8, stats, By::kSmall);
    stopping.begin_round(device.round(kLength));
    ASSERT_EQ(stopping.next(0), DraftStopping::Next::kSmall);
    stopping.observe_pass(1);
    ASSERT_TRUE(stopping.add_small(0.9F));
    stopping.end_round(accepted);
    after.push_back(stats->drafts.with_small);
  }
  EXPECT_DOUBLE_EQ(after[1].tokens - after[0].tokens, 1);
  EXPECT_DOUBLE_EQ(after[1].drafts, after[0].drafts);
}

TEST(DraftStopping, WhereNothingCostsTimeItDrafts) {
  DraftStopping stopping(8, nullptr, By::kSmall);
  Counts counts;
  steer(stopping, text_of(kProfiles[5], 0, 2000), {0, 0}, &counts);
  EXPECT_GT(counts.passes, 1500);
}

TEST(DraftStopping, NeverMoreThanItMay) {
  DraftStopping stopping(3, nullptr, By::kSmall);
  const Device device({0.01, 0.01});
  for (int round = 0; round < 100; ++round) {
    stopping.begin_round(device.round(1000));
    int drafts = 0;
    while (stopping.next(0) == DraftStopping::Next::kSmall) {
      stopping.observe_pass(1);
      drafts += stopping.add_small(0.99F);
    }
    EXPECT_EQ(drafts, 3);
    stopping.end_round(drafts);
  }
}

}  // namespace
}  // namespace tandem::simulated
