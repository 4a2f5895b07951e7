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
Played play(TreeSize& size, BatchTime& time, std::vector<std::vector<double>> rates, Cost cost,
            int tokens) {
  SimulatedMasks masks(std::move(rates), 3);
  SimulatedCandidates predicted;
  double seconds = 0;
  int rows = 0, made = 0, passes = 0;
  for (; made < tokens; ++passes) {
    const BitaTree& tree = size.tree({1, &time});
    const SimulatedPass p = simulate_pass(
        tree, masks, &predicted, [&](int mask, int rank) { size.observe_token(mask, rank); });
    time.observe(1 + p.rows, cost(p.rows));
    size.observe_round(tree, p.tokens);
    seconds += cost(p.rows);
    made += p.tokens;
    rows += p.rows;
  }
  return {made / seconds, static_cast<double>(rows) / passes};
}

// Requests that decode together, with the same masks.
class Requests {
 public:
  Requests(size_t count, const std::vector<std::vector<double>>& rates,
           const std::shared_ptr<AcceptanceStats>& stats) {
    for (size_t i = 0; i < count; ++i) all_.push_back(std::make_unique<One>(rates, stats, i));
  }
  struct Batch {
    int rows = 0, tokens = 0;
    int plain = 0;  // requests without rows
  };
  // One round of each. cost: the time of a batch with so many rows.
  template <class Cost>
  Batch step(BatchTime& time, Cost cost) {
    Batch batch;
    std::vector<std::pair<BitaTree, SimulatedPass>> rounds;
    for (const auto& one : all_) {
      const BitaTree& tree = one->size.tree({static_cast<int>(all_.size()), &time});
      const auto see = [&](int mask, int rank) { one->size.observe_token(mask, rank); };
      rounds.emplace_back(tree, simulate_pass(tree, one->masks, &one->predicted, see));
      batch.rows += 1 + rounds.back().second.rows;
      batch.tokens += rounds.back().second.tokens;
      batch.plain += rounds.back().second.rows == 0;
    }
    time.observe(batch.rows, cost(batch.rows));
    for (size_t i = 0; i < all_.size(); ++i) {
      all_[i]->size.observe_round(rounds[i].first, rounds[i].second.tokens);
    }
    return batch;
  }

 private:
  struct One {
    One(const std::vector<std::vector<double>>& rates,
        const std::shared_ptr<AcceptanceStats>& stats, uint64_t seed)
        : size(Kind::kEfficient, 3, 5, Pace::kFastest, stats), masks(rates, seed) {}
    TreeSize size;
    SimulatedMasks masks;
    SimulatedCandidates predicted;
  };
  std::vector<std::unique_ptr<One>> all_;
};

// Rows that cost so much each, on a machine that was not measured before.
double speed_of(TreeSize& size, std::vector<std::vector<double>> rates, double row, int tokens) {
  BatchTime time;
  const auto cost = [row](int rows) { return 1 + row * rows; };
  return play(size, time, std::move(rates), cost, tokens).speed;
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
  BatchTime time;
  play(size, time, kTrained, cost, 500);
  const Played later = play(size, time, kTrained, cost, 2000);
  EXPECT_LE(later.rows, 8);
  EXPECT_GT(later.speed, 1.35);
}

// The first few rows cost nothing, so that larger trees seem to cost little, too.
TEST(TreeSize, IsNotSlowerWhereSmallTreesPromiseTooMuch) {
  const auto cost = [](int rows) { return rows <= 3 ? 1.25 : 1.25 + 0.15 * (rows - 3); };
  TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
  BatchTime time;
  play(size, time, kTrained, cost, 300);
  EXPECT_GT(play(size, time, kTrained, cost, 3000).speed, 0.97);
}

// The estimates predict a gain from rows, but the measured speed contradicts them.
TEST(TreeSize, TrustsMeasuredOverPredictedGains) {
  TreeSize size(Kind::kSpine, 3, 2, Pace::kFastest);
  BatchTime time;
  double seconds = 0;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    const BitaTree& tree = size.tree({1, &time});
    for (int mask = 0; mask < 3; ++mask) size.observe_token(mask, 0);
    time.observe(1 + tree.rows(), 1 + 0.02 * tree.rows());
    seconds += 1 + 0.02 * tree.rows();
    size.observe_round(tree, 1);
  }
  EXPECT_LT(seconds, 1.03 * kRounds) << "as many tokens without rows";
}

TEST(TreeSize, ANewRequestStartsWithTheStatisticsOfOthers) {
  const auto dear = [](int rows) { return 1 + 0.4 * rows; };
  const auto cheap = [](int rows) { return 1 + 0.002 * rows; };
  auto stats = std::make_shared<AcceptanceStats>();
  BatchTime time;
  {
    TreeSize first(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
    EXPECT_LT(play(first, time, kTrained, dear, 200).speed, 0.98) << "the first request explores";
  }
  for (int i = 0; i < 5; ++i) {
    TreeSize next(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
    EXPECT_EQ(next.tree({1, &time}).rows(), 0);
    EXPECT_GT(play(next, time, kTrained, dear, 200).speed, 0.97);
  }
  stats = std::make_shared<AcceptanceStats>();
  time = BatchTime();
  {
    TreeSize first(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
    play(first, time, kTrained, cheap, 400);
  }
  TreeSize next(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
  EXPECT_GT(next.tree({1, &time}).rows(), 20);
  EXPECT_EQ(stats->trees.streams, 1);
}

TEST(TreeSize, RequestsTogetherHaveRoundsWithoutRowsInOneBatch) {
  for (const size_t streams : {1, 2, 8}) {
    Requests requests(streams, kTrained, std::make_shared<AcceptanceStats>());
    BatchTime time;
    const auto cost = [](int rows) { return 1 + 0.005 * rows; };
    constexpr int kWarm = TreeStats::kPlainEvery, kTimes = 20;
    for (int i = 0; i < kWarm; ++i) requests.step(time, cost);
    int batches = 0;
    for (int i = 0; i < kTimes * TreeStats::kPlainEvery; ++i) {
      const int plain = requests.step(time, cost).plain;
      EXPECT_TRUE(plain == 0 || plain == static_cast<int>(streams)) << plain;
      batches += plain > 0;
    }
    EXPECT_EQ(batches, kTimes) << streams;
  }
}

// As on a processor whose kernels take eight rows in the time of one: a tree may pay for a request
// alone, and not for each of eight.
TEST(TreeSize, RequestsTogetherPayForTheirRows) {
  const auto cost = [](int rows) { return rows <= 8 ? 1 : 1 + 0.12 * (rows - 8); };
  auto stats = std::make_shared<AcceptanceStats>();
  BatchTime time;
  // Tokens in a second of so many new requests, of 100 rounds each.
  const auto speed = [&](size_t streams) {
    Requests requests(streams, kTrained, stats);
    double seconds = 0, tokens = 0;
    for (int round = 0; round < 100; ++round) {
      const Requests::Batch batch = requests.step(time, cost);
      seconds += cost(batch.rows);
      tokens += batch.tokens;
    }
    return tokens / seconds;
  };
  speed(1);
  EXPECT_GT(speed(1), 1.3) << "rows up to eight cost nothing";
  EXPECT_GT(speed(8), 0.97 * 8) << "eight tokens a second without rows";
  EXPECT_GT(speed(1), 1.3);
}

// From a cold start, eight requests at once, short answers.
TEST(TreeSize, ExploringCostsLittleInFullBatches) {
  const auto cost = [](int rows) { return 1 + 0.08 * rows; };
  auto stats = std::make_shared<AcceptanceStats>();
  BatchTime time;
  time.observe(200, cost(200));  // a prompt
  double seconds = 0, tokens = 0;
  for (int answer = 0; answer < 10; ++answer) {
    Requests requests(8, kTrained, stats);
    for (int round = 0; round < 40; ++round) {
      const Requests::Batch batch = requests.step(time, cost);
      seconds += cost(batch.rows);
      tokens += batch.tokens;
    }
  }
  EXPECT_GT(tokens / seconds, 0.98 * 8 / cost(8));
}

// A few wrong predictions do not end the use of masks.
TEST(TreeSize, TriesTreesAgain) {
  auto stats = std::make_shared<AcceptanceStats>();
  BatchTime time;
  const auto cost = [](int rows) { return 1 + 0.05 * rows; };
  {
    Requests wrong(2, kBlind, stats);
    for (int i = 0; i < 100; ++i) wrong.step(time, cost);
    EXPECT_EQ(wrong.step(time, cost).plain, 2);
  }
  Requests right(2, kTrained, stats);
  for (int i = 0; i < 1000; ++i) right.step(time, cost);
  EXPECT_EQ(right.step(time, cost).plain, 0);
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
    BatchTime time;
    SimulatedNoise disturbed(seed);
    double seconds = 0, plain = 0;
    for (int request = 0; request < 8; ++request) {
      TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest, stats);
      SimulatedMasks masks(rates, seed * 100 + static_cast<uint64_t>(request));
      SimulatedCandidates predicted;
      for (int made = 0; made < 96;) {
        const BitaTree& tree = size.tree({1, &time});
        const SimulatedPass p = simulate_pass(
            tree, masks, &predicted, [&](int mask, int rank) { size.observe_token(mask, rank); });
        const double longer = disturbed();
        time.observe(1 + p.rows, longer * cost(p.rows));
        size.observe_round(tree, p.tokens);
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
    BatchTime time;
    const auto cost = [row](int n) { return 1 + row * n; };
    play(size, time, kTrained, cost, 300);
    const int mean = static_cast<int>(std::lround(play(size, time, kTrained, cost, 1500).rows));
    EXPECT_LT(mean, rows) << row;
    rows = mean;
  }
  EXPECT_LE(rows, 1);
}

TEST(TreeSize, FollowsWhatChanges) {
  TreeSize size(Kind::kEfficient, 3, 5, Pace::kFastest);
  BatchTime time;
  const auto speed = [&](const std::vector<std::vector<double>>& rates, double row, int tokens) {
    return play(size, time, rates, [row](int rows) { return 1 + row * rows; }, tokens).speed;
  };
  EXPECT_GT(speed(kBlind, 0.02, 600), 0.9);
  EXPECT_GT(speed(kTrained, 0.005, 3000), 1.5) << "masks predict from here on";
  EXPECT_GT(speed(kTrained, 0.1, 1000), 0.85) << "and here rows cost more";
}

TEST(TreeSize, AFixedTreeStays) {
  TreeSize size(Kind::kTriangle, 3, 4, Pace::kFixed);
  const int rows = bita_tree_rows(Kind::kTriangle, 3, 4);
  for (int i = 0; i < 300; ++i) {
    const BitaTree& tree = size.tree({});
    EXPECT_EQ(tree.rows(), rows);
    size.observe_token(0, -1);
    size.observe_round(tree, 1);
  }
}

// A virtual clock on which nothing takes any time.
TEST(TreeSize, WhereNothingCostsTimeTreesAreLarge) {
  TreeSize size(Kind::kEfficient, 3, 3, Pace::kFastest);
  SimulatedMasks masks(kTrained, 3);
  SimulatedCandidates predicted;
  BatchTime time;
  int whole = 0;
  for (int i = 0; i < 400; ++i) {
    const BitaTree& tree = size.tree({1, &time});
    whole += tree.rows() == bita_tree_rows(Kind::kEfficient, 3, 3);
    const SimulatedPass p = simulate_pass(tree, masks, &predicted, [](int, int) {});
    time.observe(1 + p.rows, 0);
    size.observe_round(tree, p.tokens);
  }
  EXPECT_GT(whole, 350);
}

}  // namespace
}  // namespace tandem
