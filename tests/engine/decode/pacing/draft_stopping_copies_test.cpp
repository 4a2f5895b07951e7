#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/decode/pacing/draft_stopping.h"
#include "tests/engine/decode/pacing/simulated_drafts.h"

namespace tandem::simulated {
namespace {

TEST(DraftStopping, CopiesAreTakenWhereTheyAreKept) {
  for (const bool good : {true, false}) {
    DraftStopping stopping(8, nullptr, By::kSmall);
    int copies = 0, small = 0;
    const Device device({0.3, 0.05});
    for (int round = 0; round < 200; ++round) {
      stopping.begin_round(device.round(1000));
      std::vector<bool> kept;
      for (;;) {
        const DraftStopping::Next next = stopping.next(3);
        if (next == DraftStopping::Next::kStop) break;
        const bool copy = next == DraftStopping::Next::kLookup;
        ++(copy ? copies : small);
        kept.push_back(copy ? good : round % 8 != 0);
        if (copy) {
          stopping.add_lookup(3);
        } else {
          stopping.observe_pass(1);
          if (stopping.add_small(0.9F)) continue;
          kept.pop_back();
          break;
        }
      }
      const auto failed = std::find(kept.begin(), kept.end(), false);
      stopping.end_round(static_cast<int>(failed - kept.begin()));
    }
    if (good) {
      EXPECT_GT(copies, 10 * small);
    } else {
      EXPECT_LT(copies, small / 4);
    }
  }
}

TEST(DraftStopping, LongMatchesDraftMore) {
  std::mt19937_64 rng(1);
  const Device device({0.3, 0.05});
  DraftStopping stopping(64, nullptr, By::kLookup);
  // By match: in the own text and in the history.
  const std::vector<std::pair<Matched, double>> matches = {
      {2, 0.5}, {40, 0.99}, {{4, true}, 0.3}, {{40, true}, 0.97}};
  std::vector<int> drafts(matches.size());
  for (int round = 0; round < 2000; ++round) {
    const size_t which = static_cast<size_t>(round) % matches.size();
    const auto& [by, right] = matches[which];
    stopping.begin_round(device.round(10'000));
    int made = 0, kept = 0;
    bool all = true;
    for (; stopping.next(by) == DraftStopping::Next::kLookup; ++made) {
      stopping.add_lookup(by);
      all = all && static_cast<double>(rng() >> 11) * 0x1p-53 < right;
      kept += all;
    }
    stopping.end_round(kept);
    if (round >= 1000) drafts[which] += made;
  }
  EXPECT_LT(drafts[0], 4 * 250);
  EXPECT_GT(drafts[1], 20 * 250);
  EXPECT_LT(drafts[2], 3 * 250);
  EXPECT_GT(drafts[3], 10 * 250);
}

// Beside seven requests, a row costs as much time as 0.89 tokens.
TEST(DraftStopping, BesideOthersACopyIsWorthMoreThanItsRow) {
  const Device device({0.3, 0.5});
  for (const bool alone : {true, false}) {
    DraftStopping stopping(64, nullptr, By::kLookup);
    int copies = 0;
    for (int round = 0; round < 1000; ++round) {
      DraftStopping::Round now = device.round(10'000);
      if (!alone) now.large.sequences = 8;
      stopping.begin_round(now);
      const bool copied = stopping.next(40) == DraftStopping::Next::kLookup;
      if (copied) stopping.add_lookup(40);
      copies += copied && round >= 500;
      stopping.end_round(copied && round % 16 != 7 ? 1 : 0);
    }
    if (alone) {
      EXPECT_GT(copies, 400);
    } else {
      EXPECT_LT(copies, 50);
    }
  }
}

TEST(DraftStopping, DroppedDraftsAreNotJudged) {
  const auto stats = std::make_shared<AcceptanceStats>();
  DraftStopping stopping(64, stats, By::kLookup);
  const Device device({0.3, 0.05});
  stopping.begin_round(device.round(1000));
  for (int i = 0; i < 5; ++i) stopping.add_lookup(20);
  stopping.drop_to(2);
  stopping.end_round(2);
  const DraftAcceptance& seen = stats->drafts.acceptance;
  EXPECT_EQ(seen.observations(DraftAcceptance::lookup(20, false)), 1);
  EXPECT_EQ(seen.observations(DraftAcceptance::lookup(20, true)), 1);
}

// A copy that the large model rejects costs at most a few rows, also where its match is long.
TEST(DraftStopping, CopiesBecomeLongerWhileTheyAreAccepted) {
  DraftStopping stopping(64, nullptr, By::kLookup);
  const Device device({0.3, 0.01});
  const auto copied = [&](int accepted) {  // -1: all
    stopping.begin_round(device.round(10'000));
    int drafts = 0;
    for (; stopping.next(40) == DraftStopping::Next::kLookup; ++drafts) stopping.add_lookup(40);
    stopping.end_round(accepted < 0 ? drafts : std::min(accepted, drafts));
    return drafts;
  };
  EXPECT_EQ(copied(0), 4);
  EXPECT_EQ(copied(-1), 4);
  EXPECT_EQ(copied(-1), 8);
  EXPECT_EQ(copied(-1), 16);
  EXPECT_EQ(copied(12), 32);
  EXPECT_EQ(copied(-1), 24);
  EXPECT_EQ(copied(-1), 48);
  EXPECT_EQ(copied(-1), 64);
  EXPECT_EQ(copied(-1), 64);
  EXPECT_EQ(copied(0), 64);
  EXPECT_EQ(copied(-1), 32);
}

// Reading a copied text costs the small model more than its next drafts save.
TEST(DraftStopping, TheSmallModelWaitsForTheEndOfACopy) {
  const auto stats = std::make_shared<AcceptanceStats>();
  Device device({0.2, 0.01});
  device.small.observe(64, 3.2);
  DraftStopping stopping(64, stats, By::kSmall);
  const auto next = [&](int behind) {
    DraftStopping::Round round = device.round(10'000);
    round.behind = behind;
    stopping.begin_round(round);
    EXPECT_TRUE(stopping.may_draft());
    return stopping.next(0);
  };
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(next(0), DraftStopping::Next::kSmall);
    stopping.observe_pass(1);
    stopping.add_small(0.98F);
    stopping.end_round(i % 4 > 0 ? 1 : 0);
  }
  next(0);
  for (int i = 0; i < 40; ++i) stopping.add_lookup(40);
  stopping.end_round(40);
  stats->drafts.unspent = 0;  // no trials
  EXPECT_EQ(next(40), DraftStopping::Next::kStop);
  stopping.end_round(0);
  EXPECT_EQ(next(41), DraftStopping::Next::kSmall);
}

// After answers of copies, the small model does not read the next prompt.
TEST(DraftStopping, CopiesAreNoReasonToUseTheSmallModel) {
  for (const bool copied : {true, false}) {
    const auto stats = std::make_shared<AcceptanceStats>();
    stats->drafts.answer = 300;
    Device device({0.2, 0.01});
    device.small.observe(500, 25);
    const auto reads = [&](int prompt) {
      auto stopping = std::make_unique<DraftStopping>(64, stats, By::kSmall);
      DraftStopping::Round round = device.round(300);
      round.behind = prompt;
      stopping->begin_round(round);
      return stopping;
    };
    const auto first = reads(0);
    for (int i = 0; i < 40; ++i) {
      first->begin_round(device.round(300));
      for (int j = 0; copied && j < 20; ++j) first->add_lookup(40);
      if (!copied) {
        first->observe_pass(1);
        first->add_small(0.98F);
      }
      first->end_round(copied ? 20 : 1);
    }
    EXPECT_EQ(reads(500)->may_draft(), !copied);
  }
}

TEST(DraftStopping, OnlyLookupsAreLong) {
  DraftStopping stopping(64, nullptr, By::kSmall);
  const Device device({0.01, 0});
  for (const bool match : {true, false}) {
    int drafts = 0;
    for (int round = 0; round < 20; ++round) {
      stopping.begin_round(device.round(10'000));
      for (drafts = 0;; ++drafts) {
        const DraftStopping::Next next = stopping.next(match ? 40 : 0);
        if (next == DraftStopping::Next::kStop) break;
        if (next == DraftStopping::Next::kLookup) {
          stopping.add_lookup(40);
        } else {
          stopping.observe_pass(1);
          stopping.add_small(0.999F);
        }
      }
      stopping.end_round(drafts);
    }
    EXPECT_EQ(drafts, match ? 64 : DraftStopping::kMostOfSmall);
  }
}

}  // namespace
}  // namespace tandem::simulated
