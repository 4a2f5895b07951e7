#include "engine/decode/pacing/tree_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/decode/pacing/simulated_masks.h"

namespace tandem {
namespace {

using Kind = BitaTreeKind;

struct Played {
  double speed = 0;  // tokens per pass without rows
  double rows = 0;   // of a pass, on average
};

// A pass without rows takes 1, others take cost(rows).
template <class Cost>
Played play(TreeSize& size, std::vector<std::vector<double>> rates, Cost cost, int tokens) {
  SimulatedMasks masks(std::move(rates), 3);
  SimulatedCandidates predicted;
  double seconds = 0;
  int rows = 0, made = 0, passes = 0;
  for (; made < tokens; ++passes) {
    const SimulatedPass p = simulate_pass(size.tree(), masks, &predicted, [&](int mask, int rank) {
      size.observe_token(mask, rank);
    });
    size.observe_round(p.rows, p.tokens, cost(p.rows), made == 0);
    seconds += cost(p.rows);
    made += p.tokens;
    rows += p.rows;
  }
  return {made / seconds, static_cast<double>(rows) / passes};
}

// Rows that cost so much each.
double speed_of(TreeSize& size, std::vector<std::vector<double>> rates, double row, int tokens) {
  const auto cost = [row](int rows) { return 1 + row * rows; };
  return play(size, std::move(rates), cost, tokens).speed;
}

const std::vector<std::vector<double>> kTrained = {
    {0.49, 0.12, 0.06, 0.04, 0.02}, {0.40, 0.10, 0.05, 0.03, 0.02}, {0.36, 0.10, 0.05, 0.03, 0.02}};
const std::vector<std::vector<double>> kBlind(3, std::vector<double>(5, 0.01));

TEST(TreeSize, IsNeverMuchSlowerThanNoRows) {
  for (const double row : {0.02, 0.1, 0.3, 1.0}) {
    for (const Kind kind : kTreeKinds) {
      TreeSize size(kind, 3, 5, Pace::kFastest);
      EXPECT_GT(speed_of(size, kBlind, row, 1000), 0.93) << row;
      EXPECT_GT(speed_of(size, kTrained, row, 1000), 0.96) << row;
    }
  }
}

// Products that take eight rows at once: up to there a row costs little, the ninth as much as a
// pass.
TEST(TreeSize, FindsWhereRowsBecomeDear) {
  const auto cost = [](int rows) { return 1 + 0.01 * rows + (rows > 8 ? 1 : 0); };
  TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
  play(size, kTrained, cost, 500);
  const Played later = play(size, kTrained, cost, 2000);
  EXPECT_LE(later.rows, 8);
  EXPECT_GT(later.speed, 1.35);
}

// The first few rows cost nothing, so that larger trees seem to cost little, too.
TEST(TreeSize, IsNotSlowerWhereSmallTreesPromiseTooMuch) {
  const auto cost = [](int rows) { return rows <= 3 ? 1.25 : 1.25 + 0.15 * (rows - 3); };
  TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
  play(size, kTrained, cost, 300);
  EXPECT_GT(play(size, kTrained, cost, 3000).speed, 0.97);
}

// The estimates predict a gain from rows, but the measured speed contradicts them.
TEST(TreeSize, TrustsMeasuredOverPredictedGains) {
  TreeSize size(Kind::kSpine, 3, 2, Pace::kFastest);
  double seconds = 0;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    const int rows = size.tree().rows();
    for (int mask = 0; mask < 3; ++mask) size.observe_token(mask, 0);
    size.observe_round(rows, 1, 1 + 0.02 * rows, false);
    seconds += 1 + 0.02 * rows;
  }
  EXPECT_LT(seconds, 1.03 * kRounds) << "as many tokens without rows";
}

TEST(TreeSize, ANewRequestStartsWithTheStatisticsOfOthers) {
  const auto dear = [](int rows) { return 1 + 0.4 * rows; };
  const auto cheap = [](int rows) { return 1 + 0.002 * rows; };
  auto stats = std::make_shared<AcceptanceStats>();
  {
    TreeSize first(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
    EXPECT_LT(play(first, kTrained, dear, 200).speed, 0.97) << "the first request explores";
  }
  for (int i = 0; i < 5; ++i) {
    TreeSize next(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
    EXPECT_EQ(next.tree().rows(), 0);
    EXPECT_GT(play(next, kTrained, dear, 200).speed, 0.97);
  }
  stats = std::make_shared<AcceptanceStats>();
  {
    TreeSize first(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
    play(first, kTrained, cheap, 400);
  }
  TreeSize next(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
  EXPECT_GT(next.tree().rows(), 20);
  EXPECT_EQ(stats->trees.streams, 1);
}

// Requests in one batch: what one of them finds out all know.
TEST(TreeSize, RequestsTogetherHaveAsFewRoundsWithoutRowsAsOne) {
  for (const int streams : {1, 2, 8}) {
    auto stats = std::make_shared<AcceptanceStats>();
    std::vector<std::unique_ptr<TreeSize>> sizes;
    std::vector<SimulatedMasks> masks;
    std::vector<SimulatedCandidates> predicted(static_cast<size_t>(streams));
    for (int s = 0; s < streams; ++s) {
      sizes.push_back(std::make_unique<TreeSize>(Kind::kEfficient, 3, 5, Pace::kFastest, stats));
      masks.emplace_back(kTrained, static_cast<uint64_t>(s));
    }
    constexpr int kWarm = 1000, kSteps = 20 * TreeStats::kPlainEvery;
    int plain = 0, most_at_once = 0;
    for (int step = 0; step < kWarm + kSteps; ++step) {
      std::vector<SimulatedPass> passes;
      int at_once = 0;
      for (size_t s = 0; s < sizes.size(); ++s) {
        TreeSize& size = *sizes[s];
        passes.push_back(
            simulate_pass(size.tree(), masks[s], &predicted[s],
                          [&](int mask, int rank) { size.observe_token(mask, rank); }));
        at_once += passes.back().rows == 0;
      }
      for (size_t s = 0; s < sizes.size(); ++s) {
        const SimulatedPass& p = passes[s];
        sizes[s]->observe_round(p.rows, p.tokens, 1 + 0.005 * p.rows, false);
      }
      if (step < kWarm) continue;
      plain += at_once;
      most_at_once = std::max(most_at_once, at_once);
    }
    EXPECT_NEAR(plain, 20, 2) << streams;
    EXPECT_EQ(most_at_once, 1) << streams;
  }
}

// As on a processor whose kernels take eight rows in the time of one: what a tree of a request
// alone costs says nothing of eight requests' trees, and the other way round.
TEST(TreeSize, RowCostsOfABatchAreLearnedInABatch) {
  const auto batch = [](int rows) { return rows <= 8 ? 1 : 1 + 0.12 * (rows - 8); };
  auto stats = std::make_shared<AcceptanceStats>();
  // Tokens in a second of so many requests at once, of 100 rounds each.
  const auto speed = [&](size_t streams) {
    std::vector<std::unique_ptr<TreeSize>> sizes;
    std::vector<SimulatedMasks> masks;
    std::vector<SimulatedCandidates> predicted(streams);
    for (size_t s = 0; s < streams; ++s) {
      sizes.push_back(std::make_unique<TreeSize>(Kind::kEfficient, 3, 5, Pace::kFastest, stats));
      masks.emplace_back(kTrained, s);
    }
    double seconds = 0, tokens = 0;
    for (int round = 0; round < 100; ++round) {
      std::vector<SimulatedPass> passes;
      int rows = 0;
      for (size_t s = 0; s < streams; ++s) {
        passes.push_back(
            simulate_pass(sizes[s]->tree(), masks[s], &predicted[s],
                          [&](int mask, int rank) { sizes[s]->observe_token(mask, rank); }));
        rows += 1 + passes.back().rows;
      }
      seconds += batch(rows);
      for (size_t s = 0; s < streams; ++s) {
        const SimulatedPass& p = passes[s];
        tokens += p.tokens;
        sizes[s]->observe_round(p.rows, p.tokens, batch(rows) * (1 + p.rows) / rows, false);
      }
    }
    return tokens / seconds;
  };
  speed(1);
  EXPECT_GT(speed(1), 1.3) << "rows up to eight cost nothing";
  EXPECT_GT(speed(8), 0.8 * 8) << "eight tokens a second without rows";
  EXPECT_GT(speed(1), 1.3);
}

// SmolLM2 in 4-bit blocks on two cores: masks for HumanEval, rows as bench_step has them.
TEST(TreeSize, FindsWhatPaysOnADisturbedMachine) {
  const std::vector<std::vector<double>> rates = {{0.38, 0.11, 0.06, 0.04, 0.03},
                                                  {0.24, 0.09, 0.05, 0.03, 0.02},
                                                  {0.19, 0.08, 0.05, 0.03, 0.02}};
  const auto cost = [](int rows) {
    return rows <= 3 ? 1 + 0.05 * rows : rows <= 7 ? 1.15 + 0.06 * (rows - 3) : 1 + 0.08 * rows;
  };
  double all = 0;
  constexpr int kSeeds = 20;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto stats = std::make_shared<AcceptanceStats>();
    SimulatedNoise disturbed(seed);
    double seconds = 0, plain = 0;
    for (int request = 0; request < 8; ++request) {
      TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
      SimulatedMasks masks(rates, seed * 100 + static_cast<uint64_t>(request));
      SimulatedCandidates predicted;
      for (int made = 0; made < 96;) {
        const SimulatedPass p =
            simulate_pass(size.tree(), masks, &predicted,
                          [&](int mask, int rank) { size.observe_token(mask, rank); });
        const double longer = disturbed();
        size.observe_round(p.rows, p.tokens, longer * cost(p.rows), made == 0);
        seconds += longer * cost(p.rows);
        plain += longer * p.tokens;
        made += p.tokens;
      }
    }
    all += plain / seconds;
  }
  EXPECT_GT(all / kSeeds, 1.1) << "of 1.2 or so";
}

// Of the best fixed tree's speed, whatever rows cost.
TEST(TreeSize, ComesNearTheBestTree) {
  for (const double row : {0.002, 0.01, 0.03, 0.1}) {
    double best = 1;
    for (const Kind kind : {Kind::kEfficient, Kind::kSpine}) {
      for (int m = 1; m <= 3; ++m) {
        for (int k = 1; k <= 5; ++k) {
          SimulatedMasks masks(kTrained, 5);
          SimulatedCandidates predicted;
          const BitaTree tree = make_bita_tree(kind, m, k);
          double seconds = 0, tokens = 0;
          for (int i = 0; i < 2000; ++i) {
            const SimulatedPass p = simulate_pass(tree, masks, &predicted, [](int, int) {});
            seconds += 1 + row * p.rows;
            tokens += p.tokens;
          }
          best = std::max(best, tokens / seconds);
        }
      }
    }
    TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
    EXPECT_GT(speed_of(size, kTrained, row, 4000), 0.92 * best) << row << ", " << best;
  }
}

TEST(TreeSize, DearRowsAreFew) {
  int rows = 1000;
  for (const double row : {0.001, 0.01, 0.05, 0.4}) {
    TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
    double all = 0;
    SimulatedMasks masks(kTrained, 3);
    SimulatedCandidates predicted;
    for (int i = 0; i < 1000; ++i) {
      const SimulatedPass p =
          simulate_pass(size.tree(), masks, &predicted,
                        [&](int mask, int rank) { size.observe_token(mask, rank); });
      size.observe_round(p.rows, p.tokens, 1 + row * p.rows, i == 0);
      if (i >= 200) all += p.rows;
    }
    const int mean = static_cast<int>(std::lround(all / 800));
    EXPECT_LT(mean, rows) << row;
    rows = mean;
  }
  EXPECT_LE(rows, 1);
}

TEST(TreeSize, FollowsWhatChanges) {
  TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
  EXPECT_GT(speed_of(size, kBlind, 0.02, 600), 0.9);
  EXPECT_GT(speed_of(size, kTrained, 0.005, 3000), 1.5) << "masks predict from here on";
  EXPECT_GT(speed_of(size, kTrained, 0.6, 1000), 0.9) << "and here rows cost more";
}

TEST(TreeSize, AFixedTreeStays) {
  TreeSize size(Kind::kTriangle, 3, 4, Pace::kFixed);
  const int rows = bita_tree_rows(Kind::kTriangle, 3, 4);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(size.tree().rows(), rows);
    size.observe_token(0, -1);
    size.observe_round(rows, 1, 100, false);
  }
}

// A virtual clock on which nothing takes any time.
TEST(TreeSize, WhereNothingCostsTimeTreesAreLarge) {
  TreeSize size(Kind::kEfficient, 3, 3, Pace::kFastest);
  SimulatedMasks masks(kTrained, 3);
  SimulatedCandidates predicted;
  int whole = 0;
  for (int i = 0; i < 400; ++i) {
    whole += size.tree().rows() == bita_tree_rows(Kind::kEfficient, 3, 3);
    const SimulatedPass p = simulate_pass(size.tree(), masks, &predicted, [](int, int) {});
    size.observe_round(p.rows, p.tokens, 0, false);
  }
  EXPECT_GT(whole, 350);
}

}  // namespace
}  // namespace tandem
