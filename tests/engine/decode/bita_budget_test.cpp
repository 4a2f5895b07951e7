#include "engine/decode/bita_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

namespace tandem {
namespace {

using Kind = BitaTreeKind;

constexpr Kind kKinds[] = {Kind::kEfficient, Kind::kSpine, Kind::kTriangle,
                           Kind::kFull,      Kind::kChain, Kind::kStraightforward};

// A text whose masks are right as often as said: of m_{i + 1} the candidate of each rank.
class Text {
 public:
  Text(std::vector<std::vector<double>> rates, uint64_t seed)
      : rates_(std::move(rates)), random_(seed) {}

  // The candidate of the mask that is right; -1: none is.
  int rank(int mask) {
    double u = std::uniform_real_distribution()(random_);
    const auto& by_rank = rates_[static_cast<size_t>(mask)];
    for (size_t r = 0; r < by_rank.size(); ++r) {
      u -= by_rank[r];
      if (u < 0) return static_cast<int>(r);
    }
    return -1;
  }

 private:
  std::vector<std::vector<double>> rates_;
  std::mt19937_64 random_;
};

int child_of(const BitaTree& tree, int node, int rank) {
  for (int i = 0; i < tree.size(); ++i) {
    if (tree.at(i).parent == node && tree.at(i).rank == rank) return i;
  }
  return BitaTree::kRoot;
}

// What a mask's candidates are for: as the method has them from one pass to the next.
struct Predicted {
  int depths = 0, spent = 0;
};

struct Verified {
  int rows = 0, tokens = 1;
};

// What a pass of the method finds, without a model. `see` is told of each token that a mask had
// foreseen.
template <class See>
Verified verify(const BitaTree& whole, Text& text, Predicted* foreseen, See see) {
  const BitaTree tree =
      whole.clipped(std::vector<int>(static_cast<size_t>(foreseen->depths), 1 << 20), 1 << 20);
  Verified p;
  p.rows = tree.rows();
  int node = BitaTree::kRoot;
  bool best = true;
  for (int depth = 0; depth < foreseen->depths; ++depth) {
    const int rank = text.rank(foreseen->spent + depth);
    if (best) see(foreseen->spent + depth, rank);
    const int child = rank < 0 ? BitaTree::kRoot : child_of(tree, node, rank);
    if (child == BitaTree::kRoot) break;
    best = best && rank == 0;
    node = child;
    ++p.tokens;
  }
  int ahead = 0;
  for (; node != BitaTree::kRoot && tree.masks(node) == 0; node = tree.at(node).parent) ++ahead;
  *foreseen = {std::max(0, tree.masks(node) - ahead), ahead};
  return p;
}

TEST(MaskHits, AreWhatWasSeenAndAtFirstAGuess) {
  MaskHits hits(3, 4);
  EXPECT_DOUBLE_EQ(hits.rate(0, 0), MaskHits::kFirst);
  EXPECT_LT(hits.rate(1, 0), hits.rate(0, 0));
  EXPECT_LT(hits.rate(0, 1), hits.rate(0, 0));
  for (int i = 0; i < 400; ++i) hits.saw(0, i % 4 == 0 ? 2 : -1, 4);
  EXPECT_NEAR(hits.rate(0, 2), 0.25, 0.03);
  EXPECT_NEAR(hits.rate(0, 0), 0, 0.03);
  EXPECT_LT(hits.rate(2, 0), 0.05) << "of masks that nobody saw, it is as of those before them";
  for (int i = 0; i < 400; ++i) hits.saw(2, 0, 4);
  EXPECT_GT(hits.rate(2, 0), 0.9);
  hits.doubt();
  for (int i = 0; i < 12; ++i) hits.saw(2, -1, 4);
  EXPECT_LT(hits.rate(2, 0), 0.65);
}

TEST(MaskHits, BeginWithWhatOthersKnow) {
  MaskHits others(4, 4);
  for (int i = 0; i < 400; ++i) others.saw(0, i % 2 == 0 ? 0 : -1, 2);
  MaskHits hits(2, 3, &others);
  EXPECT_NEAR(hits.rate(0, 0), 0.5, 0.03);
  EXPECT_NEAR(hits.rate(0, 1), 0, 0.01);
  EXPECT_NEAR(hits.rate(0, 2), MaskHits::kFirst * MaskHits::kNextRank * MaskHits::kNextRank, 1e-9)
      << "nobody looked at the third candidate";
  for (int i = 0; i < 100; ++i) hits.saw(0, 0, 3);
  EXPECT_GT(hits.rate(0, 0), 0.85);
  for (int i = 0; i < 400; ++i) others.saw(1, 2, 3);
  EXPECT_LT(hits.rate(1, 2), 0.2);
  hits.estimate();
  EXPECT_GT(hits.rate(1, 2), 0.9) << "what others have seen since";
}

TEST(TreeCost, IsWhatWasSeenOfEachSize) {
  TreeCost cost;
  cost.saw(3, 5);
  EXPECT_FALSE(cost.known()) << "nothing to hold it against";
  cost.saw(0, 10);
  for (int i = 0; i < 40; ++i) cost.saw(3, 11);
  ASSERT_TRUE(cost.known());
  EXPECT_NEAR(cost.with(3), 11, 0.1);
  EXPECT_NEAR(cost.with(12), 14, 0.3) << "of sizes that nobody saw, as those that were";
  for (int i = 0; i < 40; ++i) cost.saw(12, 22);
  EXPECT_NEAR(cost.with(12), 22, 0.1);
  EXPECT_NEAR(cost.with(3), 11, 0.4);
  EXPECT_NEAR(cost.with(6), 14.7, 0.6) << "between the two";
  EXPECT_NEAR(cost.with(24), 34, 1);
  EXPECT_EQ(cost.plain(), 10);
  for (int i = 0; i < 90; ++i) cost.saw(12, 16);
  EXPECT_NEAR(cost.with(12), 16, 0.9) << "and they change";
  EXPECT_TRUE(cost.seen(12));
  EXPECT_FALSE(cost.seen(13));
  EXPECT_EQ(cost.reach(), 26) << "no more than twice the rows that were seen are tried";
}

// Rounds of a real machine: some are longer, a few are much longer, and all are for a while.
class Disturbed {
 public:
  explicit Disturbed(uint64_t seed) : random_(seed) {}
  double operator()() {
    const double slow = 1 + 0.08 * std::sin(2 * std::numbers::pi * ++rounds_ / 300.0);
    const double each = std::exp(0.08 * std::normal_distribution<double>()(random_));
    return slow * each * (std::uniform_real_distribution()(random_) < 0.02 ? 2 : 1);
  }

 private:
  std::mt19937_64 random_;
  int rounds_ = 0;
};

// Of one kind there were many rounds, of the other a trial's few.
TEST(TreeCost, FewRoundsDoNotLookLongerThanMany) {
  double all = 0;
  constexpr int kSeeds = 50;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Disturbed disturbed(seed);
    TreeCost cost;
    for (int i = 0; i < 100; ++i) cost.saw(0, disturbed());
    for (int i = 0; i < 3; ++i) cost.saw(3, 1.1 * disturbed());
    all += cost.with(3) / cost.plain();
  }
  EXPECT_NEAR(all / kSeeds, 1.1, 0.03);
}

// Against passes that are played.
TEST(ExpectedTokens, AreThoseOfManyPasses) {
  for (const Kind kind : kKinds) {
    for (const int masks : {1, 2, 4}) {
      const BitaTree tree = make_bita_tree(kind, masks, 3);
      MaskHits hits(masks, 3);
      std::vector<std::vector<double>> rates;
      for (int m = 0; m < masks; ++m) {
        for (int i = 0; i < 600; ++i) hits.saw(m, i % 10 < 5 ? 0 : i % 10 < 7 ? 1 : i % 10 - 7, 3);
        auto& by_rank = rates.emplace_back();
        for (int r = 0; r < 3; ++r) by_rank.push_back(hits.rate(m, r));
      }
      Text text(rates, 7);
      Predicted foreseen;
      int64_t tokens = 0;
      constexpr int kPasses = 40000;
      for (int i = 0; i < kPasses; ++i) {
        tokens += verify(tree, text, &foreseen, [](int, int) {}).tokens;
      }
      EXPECT_NEAR(expected_tokens(tree, hits), static_cast<double>(tokens) / kPasses, 0.03)
          << static_cast<int>(kind) << ", " << masks;
    }
  }
}

struct Played {
  double speed = 0;  // tokens per pass without rows
  double rows = 0;   // of a pass, on average
};

// A pass without rows takes 1, one with so many rows as much as `cost` says.
template <class Cost>
Played play(BitaBudget& budget, std::vector<std::vector<double>> rates, Cost cost, int tokens) {
  Text text(std::move(rates), 3);
  Predicted foreseen;
  double seconds = 0;
  int rows = 0, made = 0, passes = 0;
  for (; made < tokens; ++passes) {
    const Verified p = verify(budget.tree(), text, &foreseen,
                              [&](int mask, int rank) { budget.saw_token(mask, rank); });
    budget.saw_round(p.rows, p.tokens, cost(p.rows), made == 0);
    seconds += cost(p.rows);
    made += p.tokens;
    rows += p.rows;
  }
  return {made / seconds, static_cast<double>(rows) / passes};
}

// Rows that cost so much each.
double speed_of(BitaBudget& budget, std::vector<std::vector<double>> rates, double row,
                int tokens) {
  const auto cost = [row](int rows) { return 1 + row * rows; };
  return play(budget, std::move(rates), cost, tokens).speed;
}

const std::vector<std::vector<double>> kTrained = {
    {0.49, 0.12, 0.06, 0.04, 0.02}, {0.40, 0.10, 0.05, 0.03, 0.02}, {0.36, 0.10, 0.05, 0.03, 0.02}};
const std::vector<std::vector<double>> kBlind(3, std::vector<double>(5, 0.01));

TEST(BitaBudget, IsNeverMuchSlowerThanNoRows) {
  for (const double row : {0.02, 0.1, 0.3, 1.0}) {
    for (const Kind kind : kKinds) {
      BitaBudget budget(kind, 3, 5, true);
      EXPECT_GT(speed_of(budget, kBlind, row, 1000), 0.93) << row;
      EXPECT_GT(speed_of(budget, kTrained, row, 1000), 0.96) << row;
    }
  }
}

// Products that take eight rows at once: up to there a row costs little, the ninth as much as a
// pass.
TEST(BitaBudget, FindsWhereRowsBecomeDear) {
  const auto cost = [](int rows) { return 1 + 0.01 * rows + (rows > 8 ? 1 : 0); };
  BitaBudget budget(Kind::kEfficient, 3, 5, true);
  play(budget, kTrained, cost, 500);
  const Played later = play(budget, kTrained, cost, 2000);
  EXPECT_LE(later.rows, 8);
  EXPECT_GT(later.speed, 1.35);
}

// The first few rows cost nothing, so that larger trees seem to cost little, too.
TEST(BitaBudget, IsNotSlowerWhereSmallTreesPromiseTooMuch) {
  const auto cost = [](int rows) { return rows <= 3 ? 1.25 : 1.25 + 0.15 * (rows - 3); };
  BitaBudget budget(Kind::kEfficient, 3, 5, true);
  play(budget, kTrained, cost, 300);
  EXPECT_GT(play(budget, kTrained, cost, 3000).speed, 0.97);
}

// Rates and costs say that rows pay, and what comes out says otherwise.
TEST(BitaBudget, BelievesWhatTreesMadeRatherThanWhatTheyPromised) {
  BitaBudget budget(Kind::kSpine, 3, 2, true);
  double seconds = 0;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    const int rows = budget.tree().rows();
    for (int mask = 0; mask < 3; ++mask) budget.saw_token(mask, 0);
    budget.saw_round(rows, 1, 1 + 0.02 * rows, false);
    seconds += 1 + 0.02 * rows;
  }
  EXPECT_LT(seconds, 1.03 * kRounds) << "as many tokens without rows";
}

TEST(BitaBudget, ANewRequestBeginsWithWhatOthersLearnt) {
  const auto dear = [](int rows) { return 1 + 0.4 * rows; };
  const auto cheap = [](int rows) { return 1 + 0.002 * rows; };
  auto lore = std::make_shared<BitaLore>();
  {
    BitaBudget first(Kind::kEfficient, 3, 5, true, lore);
    EXPECT_LT(play(first, kTrained, dear, 200).speed, 0.97) << "somebody has to try";
  }
  for (int i = 0; i < 5; ++i) {
    BitaBudget next(Kind::kEfficient, 3, 5, true, lore);
    EXPECT_EQ(next.tree().rows(), 0);
    EXPECT_GT(play(next, kTrained, dear, 200).speed, 0.97);
  }
  lore = std::make_shared<BitaLore>();
  {
    BitaBudget first(Kind::kEfficient, 3, 5, true, lore);
    play(first, kTrained, cheap, 400);
  }
  BitaBudget next(Kind::kEfficient, 3, 5, true, lore);
  EXPECT_GT(next.tree().rows(), 20);
  EXPECT_EQ(lore->streams, 1);
}

// Requests in one batch: what one of them finds out all know.
TEST(BitaBudget, RequestsTogetherHaveAsFewRoundsWithoutRowsAsOne) {
  for (const int streams : {1, 2, 8}) {
    auto lore = std::make_shared<BitaLore>();
    std::vector<std::unique_ptr<BitaBudget>> budgets;
    std::vector<Text> texts;
    std::vector<Predicted> foreseen(static_cast<size_t>(streams));
    for (int s = 0; s < streams; ++s) {
      budgets.push_back(std::make_unique<BitaBudget>(Kind::kEfficient, 3, 5, true, lore));
      texts.emplace_back(kTrained, static_cast<uint64_t>(s));
    }
    constexpr int kWarm = 1000, kSteps = 20 * BitaLore::kPlainEvery;
    int plain = 0, most_at_once = 0;
    for (int step = 0; step < kWarm + kSteps; ++step) {
      std::vector<Verified> passes;
      int at_once = 0;
      for (size_t s = 0; s < budgets.size(); ++s) {
        BitaBudget& budget = *budgets[s];
        passes.push_back(verify(budget.tree(), texts[s], &foreseen[s],
                                [&](int mask, int rank) { budget.saw_token(mask, rank); }));
        at_once += passes.back().rows == 0;
      }
      for (size_t s = 0; s < budgets.size(); ++s) {
        const Verified& p = passes[s];
        budgets[s]->saw_round(p.rows, p.tokens, 1 + 0.005 * p.rows, false);
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
TEST(BitaBudget, WhatRowsCostInACrowdIsLearntInOne) {
  const auto batch = [](int rows) { return rows <= 8 ? 1 : 1 + 0.12 * (rows - 8); };
  auto lore = std::make_shared<BitaLore>();
  // Tokens in a second of so many requests at once, of 100 rounds each.
  const auto speed = [&](size_t streams) {
    std::vector<std::unique_ptr<BitaBudget>> budgets;
    std::vector<Text> texts;
    std::vector<Predicted> foreseen(streams);
    for (size_t s = 0; s < streams; ++s) {
      budgets.push_back(std::make_unique<BitaBudget>(Kind::kEfficient, 3, 5, true, lore));
      texts.emplace_back(kTrained, s);
    }
    double seconds = 0, tokens = 0;
    for (int round = 0; round < 100; ++round) {
      std::vector<Verified> passes;
      int rows = 0;
      for (size_t s = 0; s < streams; ++s) {
        passes.push_back(verify(budgets[s]->tree(), texts[s], &foreseen[s],
                                [&](int mask, int rank) { budgets[s]->saw_token(mask, rank); }));
        rows += 1 + passes.back().rows;
      }
      seconds += batch(rows);
      for (size_t s = 0; s < streams; ++s) {
        const Verified& p = passes[s];
        tokens += p.tokens;
        budgets[s]->saw_round(p.rows, p.tokens, batch(rows) * (1 + p.rows) / rows, false);
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
TEST(BitaBudget, FindsWhatPaysOnADisturbedMachine) {
  const std::vector<std::vector<double>> rates = {{0.38, 0.11, 0.06, 0.04, 0.03},
                                                  {0.24, 0.09, 0.05, 0.03, 0.02},
                                                  {0.19, 0.08, 0.05, 0.03, 0.02}};
  const auto cost = [](int rows) {
    return rows <= 3 ? 1 + 0.05 * rows : rows <= 7 ? 1.15 + 0.06 * (rows - 3) : 1 + 0.08 * rows;
  };
  double all = 0;
  constexpr int kSeeds = 20;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto lore = std::make_shared<BitaLore>();
    Disturbed disturbed(seed);
    double seconds = 0, plain = 0;
    for (int request = 0; request < 8; ++request) {
      BitaBudget budget(Kind::kEfficient, 3, 5, true, lore);
      Text text(rates, seed * 100 + static_cast<uint64_t>(request));
      Predicted foreseen;
      for (int made = 0; made < 96;) {
        const Verified p = verify(budget.tree(), text, &foreseen,
                                  [&](int mask, int rank) { budget.saw_token(mask, rank); });
        const double longer = disturbed();
        budget.saw_round(p.rows, p.tokens, longer * cost(p.rows), made == 0);
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
TEST(BitaBudget, ComesNearTheBestTree) {
  for (const double row : {0.002, 0.01, 0.03, 0.1}) {
    double best = 1;
    for (const Kind kind : {Kind::kEfficient, Kind::kSpine}) {
      for (int m = 1; m <= 3; ++m) {
        for (int k = 1; k <= 5; ++k) {
          Text text(kTrained, 5);
          Predicted foreseen;
          const BitaTree tree = make_bita_tree(kind, m, k);
          double seconds = 0, tokens = 0;
          for (int i = 0; i < 2000; ++i) {
            const Verified p = verify(tree, text, &foreseen, [](int, int) {});
            seconds += 1 + row * p.rows;
            tokens += p.tokens;
          }
          best = std::max(best, tokens / seconds);
        }
      }
    }
    BitaBudget budget(Kind::kEfficient, 3, 5, true);
    EXPECT_GT(speed_of(budget, kTrained, row, 4000), 0.92 * best) << row << ", " << best;
  }
}

TEST(BitaBudget, DearRowsAreFew) {
  int rows = 1000;
  for (const double row : {0.001, 0.01, 0.05, 0.4}) {
    BitaBudget budget(Kind::kEfficient, 3, 5, true);
    double all = 0;
    Text text(kTrained, 3);
    Predicted foreseen;
    for (int i = 0; i < 1000; ++i) {
      const Verified p = verify(budget.tree(), text, &foreseen,
                                [&](int mask, int rank) { budget.saw_token(mask, rank); });
      budget.saw_round(p.rows, p.tokens, 1 + row * p.rows, i == 0);
      if (i >= 200) all += p.rows;
    }
    const int mean = static_cast<int>(std::lround(all / 800));
    EXPECT_LT(mean, rows) << row;
    rows = mean;
  }
  EXPECT_LE(rows, 1);
}

TEST(BitaBudget, FollowsWhatChanges) {
  BitaBudget budget(Kind::kEfficient, 3, 5, true);
  EXPECT_GT(speed_of(budget, kBlind, 0.02, 600), 0.9);
  EXPECT_GT(speed_of(budget, kTrained, 0.005, 3000), 1.5) << "masks foresee from here on";
  EXPECT_GT(speed_of(budget, kTrained, 0.6, 1000), 0.9) << "and here rows cost more";
}

TEST(BitaBudget, AFixedTreeStays) {
  BitaBudget budget(Kind::kTriangle, 3, 4, false);
  const int rows = bita_tree_rows(Kind::kTriangle, 3, 4);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(budget.tree().rows(), rows);
    budget.saw_token(0, -1);
    budget.saw_round(rows, 1, 100, false);
  }
}

// A virtual clock on which nothing takes any time.
TEST(BitaBudget, WhereNothingCostsTimeTreesAreLarge) {
  BitaBudget budget(Kind::kEfficient, 3, 3, true);
  Text text(kTrained, 3);
  Predicted foreseen;
  int whole = 0;
  for (int i = 0; i < 400; ++i) {
    whole += budget.tree().rows() == bita_tree_rows(Kind::kEfficient, 3, 3);
    const Verified p = verify(budget.tree(), text, &foreseen, [](int, int) {});
    budget.saw_round(p.rows, p.tokens, 0, false);
  }
  EXPECT_GT(whole, 350);
}

}  // namespace
}  // namespace tandem
