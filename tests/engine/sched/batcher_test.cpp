#include "engine/sched/batcher.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace tandem {
namespace {

Candidate candidate(int index, int rows, int splittable, uint64_t order, int model = 0,
                    int priority = 0, int fixed = 0) {
  Candidate c;
  c.index = index;
  c.model = ModelId(model);
  c.fixed_rows = fixed;
  c.rows = rows;
  c.splittable = splittable;
  c.priority = priority;
  c.order = order;
  return c;
}

TEST(Batcher, NothingFromNothing) { EXPECT_TRUE(pick_batch({}, ModelId(), {}).empty()); }

TEST(Batcher, PriorityThenAge) {
  const std::vector<Candidate> all = {candidate(0, 1, 0, 5), candidate(1, 1, 0, 3),
                                      candidate(2, 1, 0, 9, 0, 1), candidate(3, 1, 0, 1)};
  const auto picked = pick_batch(all, ModelId(), {3, 8, 8});
  ASSERT_EQ(picked.size(), 3U);
  EXPECT_EQ(picked[0].index, 2);
  EXPECT_EQ(picked[1].index, 3);
  EXPECT_EQ(picked[2].index, 1);
}

TEST(Batcher, TheClientThatWasServedLeastGoesFirst) {
  std::vector<Candidate> all = {candidate(0, 1, 0, 1), candidate(1, 1, 0, 2),
                                candidate(2, 1, 0, 3, 0, 1)};
  all[0].client = 1, all[0].served = 10;
  all[1].client = 2, all[1].served = 9;
  all[2].client = 1, all[2].served = 10;  // but of a higher priority
  const auto picked = pick_batch(all, ModelId(), {2, 8, 8});
  ASSERT_EQ(picked.size(), 2U);
  EXPECT_EQ(picked[0].index, 2);
  EXPECT_EQ(picked[1].index, 1);
}

// Ten passes of one client, older, and two of another.
TEST(Batcher, AStepIsDividedBetweenClients) {
  std::vector<Candidate> all;
  for (int i = 0; i < 12; ++i) {
    all.push_back(candidate(i, 1, 0, static_cast<uint64_t>(i)));
    all.back().client = i < 10 ? 1 : 2;
    all.back().served = 100;
    all.back().cost = 2;
  }
  std::vector<int> order;
  for (const Picked& p : pick_batch(all, ModelId(), {6, 8, 8})) order.push_back(p.index);
  EXPECT_EQ(order, (std::vector<int>{0, 10, 1, 11, 2, 3}));
  all[10].served = all[11].served = 103;  // it had more already
  order.clear();
  for (const Picked& p : pick_batch(all, ModelId(), {6, 8, 8})) order.push_back(p.index);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 10, 2, 11, 3}));
}

TEST(Batcher, ModelsTakeTurns) {
  std::vector<Candidate> all;
  for (int m : {4, 0, 2}) all.push_back(candidate(m, 1, 0, 1, m));
  ModelId last;
  std::vector<int> turns;
  for (int i = 0; i < 6; ++i) {
    const auto picked = pick_batch(all, last, {});
    ASSERT_EQ(picked.size(), 1U);
    last = ModelId(picked[0].index);
    turns.push_back(last.value);
  }
  EXPECT_EQ(turns, (std::vector<int>{0, 2, 4, 0, 2, 4}));
}

TEST(Batcher, WhatCannotBeSplitMayExceedTheBudgetAlone) {
  const std::vector<Candidate> all = {candidate(0, 100, 0, 1), candidate(1, 1, 0, 2)};
  const auto picked = pick_batch(all, ModelId(), {16, 8, 8});
  ASSERT_EQ(picked.size(), 1U);
  EXPECT_EQ(picked[0].count, 100);
}

TEST(Batcher, AQuarterBelongsToPrefills) {
  std::vector<Candidate> all;
  for (int i = 0; i < 64; ++i) all.push_back(candidate(i, 1, 0, static_cast<uint64_t>(i)));
  all.push_back(candidate(64, 1000, 999, 100));  // the youngest
  const auto picked = pick_batch(all, ModelId(), {64, 64, 256});
  ASSERT_EQ(picked.size(), 49U);
  EXPECT_EQ(picked.back().index, 64);
  EXPECT_EQ(picked.back().count, 16);
}

TEST(Batcher, AChunkIsNoLongerThanItsLimit) {
  const std::vector<Candidate> all = {candidate(0, 1000, 999, 1), candidate(1, 1, 0, 2)};
  const auto picked = pick_batch(all, ModelId(), {512, 256, 256});
  ASSERT_EQ(picked.size(), 2U);
  EXPECT_EQ(picked[0].index, 1);
  EXPECT_EQ(picked[1].count, 256);
}

// If all passes fit, they keep their order.
TEST(Batcher, AllThatFitGo) {
  std::vector<Candidate> all;
  for (int i = 0; i < 8; ++i)
    all.push_back(candidate(i, 1 + i % 2, 0, static_cast<uint64_t>(9 - i)));
  all[3].priority = 1;
  std::vector<int> order;
  for (const Picked& p : pick_batch(all, ModelId(), {12, 8, 8})) {
    EXPECT_EQ(p.count, 1 + p.index % 2);
    order.push_back(p.index);
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(pick_batch(all, ModelId(), {11, 8, 8})[0].index, 3) << "one row too few";
  EXPECT_EQ(pick_batch(all, ModelId(), {12, 8, 7})[0].index, 3) << "one work too few";
  all[0].model = ModelId(1);
  EXPECT_EQ(pick_batch(all, ModelId(), {12, 8, 8}).size(), 7U);
}

struct Random {
  explicit Random(uint64_t seed) : rng(seed) {}
  int below(int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); }
  std::mt19937_64 rng;
};

TEST(Batcher, EveryBatchIsLegal) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Random r(seed);
    const BatchLimits limits = {1 + r.below(40), 1 + r.below(20), 1 + r.below(8)};
    std::vector<Candidate> all;
    for (int i = 0, n = 1 + r.below(12); i < n; ++i) {
      const int rows = r.below(3) ? 1 + r.below(4) : r.below(60);
      const int fixed = rows == 0 ? 1 + r.below(5) : r.below(3) ? 0 : r.below(20);
      const int splittable = rows == 0 || r.below(3) == 0 ? 0 : r.below(rows);
      all.push_back(candidate(i, rows, splittable, r.rng() % 100, r.below(3), r.below(2), fixed));
    }
    const auto picked = pick_batch(all, ModelId(r.below(3)), limits);
    ASSERT_FALSE(picked.empty());
    ASSERT_LE(static_cast<int>(picked.size()), limits.works);
    std::set<int> once;
    int rows = 0;
    for (const Picked& p : picked) {
      const Candidate& c = all[static_cast<size_t>(p.index)];
      EXPECT_TRUE(once.insert(p.index).second);
      EXPECT_EQ(c.model, all[static_cast<size_t>(picked[0].index)].model);
      EXPECT_TRUE(p.count == c.rows || (p.count > 0 && p.count <= c.splittable)) << seed;
      rows += c.fixed_rows + p.count;
    }
    EXPECT_TRUE(rows <= limits.step_rows || picked.size() == 1) << seed;
  }
}

// Every pass runs eventually, for random mixes and while younger passes keep coming.
TEST(Batcher, NothingStarves) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random r(seed);
    const BatchLimits limits = {1 + r.below(16), 1 + r.below(16), 1 + r.below(4)};
    std::map<int, Candidate> pending;
    int next = 0;
    const auto arrive = [&](bool small) {
      const int rows = small ? 1 : 1 + r.below(40);
      const int splittable = small || r.below(2) ? 0 : rows - 1;
      pending[next] = candidate(next, rows, splittable, static_cast<uint64_t>(next), r.below(3), 0,
                                small ? 0 : r.below(10));
      ++next;
    };
    for (int i = 0; i < 10; ++i) arrive(false);
    ModelId last;
    int steps = 0;
    while (pending.begin()->first < 10) {
      ASSERT_LT(++steps, 3000) << "seed " << seed << " starves " << pending.begin()->first;
      for (int i = 0; i < 4 && pending.size() < 60; ++i) arrive(true);
      std::vector<Candidate> all;
      for (const auto& [i, c] : pending) all.push_back(c);
      const auto picked = pick_batch(all, last, limits);
      for (const Picked& p : picked) {
        Candidate& c = pending.at(p.index);
        last = c.model;
        c.fixed_rows = 0;
        c.rows -= p.count;
        c.splittable = std::max(0, c.splittable - p.count);
        if (c.rows == 0) pending.erase(p.index);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
