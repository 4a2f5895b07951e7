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

// With mask tokens, two drafts cost one pass.
TEST(DraftStopping, ExpectsDraftsOfMaskTokens) {
  const Device device({0.66, 0.05});
  const auto drafts = [&](By by) {
    const auto stats = std::make_shared<AcceptanceStats>();
    stats->drafts.unspent = 0;  // no trials
    DraftStopping stopping(8, stats, by);
    stopping.begin_round(device.round(kLength));
    return stopping.may_draft();
  };
  EXPECT_FALSE(drafts(By::kSmall));
  EXPECT_TRUE(drafts(By::kParallel));
}

// The first predictions of a server may be wrong by chance, also where requests decode together.
TEST(DraftStopping, TriesMaskTokensWhileLittleIsKnown) {
  const auto parallel = [](int observations) {
    Device device({0.3, 0.02});
    device.small = BatchTime();
    for (int rows = 1; rows <= 16; ++rows) device.small.observe(rows, 0.3 + 0.02 * (rows - 1));
    const auto stats = std::make_shared<AcceptanceStats>();
    stats->drafts.with_small = {40, 120, 80, 80, 80};
    for (int i = 0; i < observations; ++i) {
      stats->drafts.acceptance.observe(DraftAcceptance::kNextParallel, i % 5 == 4, 1);
    }
    DraftStopping one(8, stats, By::kParallel), other(8, stats, By::kParallel);
    DraftStopping::Round round = device.round(1000);
    round.large.sequences = round.small.sequences = 2;
    one.begin_round(round);
    one.end_round(0);
    other.begin_round(round);
    one.begin_round(round);
    EXPECT_TRUE(one.may_draft());
    return one.parallel();
  };
  EXPECT_TRUE(parallel(5));
  EXPECT_FALSE(parallel(100));
}

// A small model with a mask, which predicts `predicted` of its tokens, with confidence 0.6;
// a verified parallel draft is accepted as often as the small model's own token would be.
struct Masked {
  double seconds = 0;
  int tokens = 0, guesses = 0, judged_guesses = 0;
};

Masked steer_masked(double predicted, Costs costs, bool masks, int rounds) {
  std::mt19937_64 rng(5);
  const auto chance = [&](double p) { return static_cast<double>(rng() >> 11) * 0x1p-53 < p; };
  DraftStopping stopping(12, nullptr, masks ? By::kParallel : By::kSmall);
  const Device device(costs);
  Masked m;
  for (int round = 0; round < rounds; ++round) {
    stopping.begin_round(device.round(100000));
    std::vector<bool> kept;
    bool on = true, guess = false, right = false;
    while (on && stopping.next(0, guess ? 0.6F : 0) == DraftStopping::Next::kSmall) {
      m.seconds += costs.small;
      stopping.observe_pass(1);
      for (bool says = true; says && on; says = std::exchange(right, false)) {
        on = stopping.add_small(0.9F);
        if (on) kept.push_back(chance(0.9));
      }
      guess = masks;
      right = masks && chance(predicted);
      m.guesses += masks;
    }
    if (on && guess && stopping.add_parallel(0.6F)) {
      ++m.judged_guesses;
      kept.push_back(right && chance(0.9));
    }
    const auto accepted =
        static_cast<int>(std::find(kept.begin(), kept.end(), false) - kept.begin());
    const auto rows = static_cast<int>(kept.size()) + 1;
    const double pass = 1 + costs.row * (rows - 1);
    m.seconds += pass;
    stopping.end_round(accepted);
    m.tokens += accepted + 1;
  }
  return m;
}

TEST(DraftStopping, ParallelDraftsSavePasses) {
  const auto pace = [](double predicted, Costs costs, bool masks) {
    const Masked m = steer_masked(predicted, costs, masks, 3000);
    return m.tokens / m.seconds;
  };
  for (const Costs costs : {Costs{0.3, 0.03}, Costs{0.15, 0.05}, Costs{0.5, 0.02}}) {
    const double without = pace(0, costs, false);
    EXPECT_GT(pace(0.6, costs, true), 1.1 * without) << costs.small;
    EXPECT_GT(pace(0.9, costs, true), 1.25 * without) << costs.small;
    EXPECT_GT(pace(0, costs, true), 0.95 * without) << costs.small;
  }
}

// As drafts that nothing was paid for yet, but their rows.
TEST(DraftStopping, ParallelDraftsAreVerifiedIfWorthTheirRows) {
  const auto share = [](double predicted, double row) {
    const Masked m = steer_masked(predicted, {0.3, row}, true, 1000);
    return static_cast<double>(m.judged_guesses) / 1000;
  };
  EXPECT_GT(share(0.6, 0.03), 0.8);
  EXPECT_LT(share(0, 0.03), 0.2);
  EXPECT_LT(share(0.3, 0.6), 0.2);
}

TEST(DraftStopping, ParallelDraftsBelowTheRequestsProbabilityAreNotVerified) {
  DraftStopping stopping(8, nullptr, By::kParallel);
  const Device device({0.3, 0.03});
  stopping.begin_round(device.round(100));
  EXPECT_FALSE(stopping.add_parallel(0.4F, 0.5F));
  EXPECT_TRUE(stopping.add_parallel(0.6F, 0.5F));
}

}  // namespace
}  // namespace tandem::simulated
