#include "engine/decode/pacing/saved_numbers.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/pacing/batch_time.h"

namespace tandem {
namespace {

BatchTime some_times() {
  BatchTime t;
  for (int rows = 1; rows < 300; rows += 1 + rows / 4) {
    for (int i = 0; i < 7; ++i) t.observe(rows, 0.02 + 0.001 * rows + 1e-5 * i);
  }
  return t;
}

void fill(DraftStats* drafts) {
  for (int event = 0; event <= DraftAcceptance::kNextParallel; ++event) {
    for (int i = 0; i < event; ++i) drafts->acceptance.observe(event, i % 3 > 0, 0.98);
  }
  drafts->with_small.observe({1, 4, 3, 2, 9});
  drafts->answer = 77.5;
  drafts->unspent = 3.25;
  drafts->since_further = 11;
}

void fill(TreeStats* trees) {
  for (int i = 0; i < 40; ++i) trees->acceptance.observe(i % 4, i % 3 - 1, 5);
  trees->yield.observe(3, 4, 0.99);
  trees->unspent = 2.5;
}

template <class T>
void expect_round_trip(T& from) {
  const std::vector<double> numbers = numbers_of(from);
  T to;
  ASSERT_TRUE(restore(numbers, &to));
  EXPECT_EQ(numbers_of(to), numbers);
}

TEST(SavedNumbers, RestoreWhatWasSaved) {
  BatchTime times = some_times();
  expect_round_trip(times);
  BatchTime restored;
  ASSERT_TRUE(restore(numbers_of(times), &restored));
  for (const double rows : {0.5, 1.0, 3.3, 17.0, 400.0}) {
    EXPECT_EQ(restored.seconds(rows), times.seconds(rows));
    EXPECT_EQ(restored.row(rows), times.row(rows));
  }
  DraftStats drafts;
  fill(&drafts);
  expect_round_trip(drafts);
  TreeStats trees;
  fill(&trees);
  expect_round_trip(trees);
  TreeStats same;
  ASSERT_TRUE(restore(numbers_of(trees), &same));
  EXPECT_EQ(same.acceptance.rate(1, 1), trees.acceptance.rate(1, 1));
  EXPECT_EQ(same.unspent, 2.5);
}

TEST(SavedNumbers, OfNothingObservedAreRestoredToo) {
  BatchTime times;
  expect_round_trip(times);
  BatchTime restored;
  ASSERT_TRUE(restore(numbers_of(times), &restored));
  EXPECT_FALSE(restored.known());
  TreeStats trees;
  expect_round_trip(trees);
}

// Requests that use the statistics now are not among them.
TEST(SavedNumbers, UsersAreNotSaved) {
  DraftStats drafts;
  drafts.streams = 3;
  drafts.drafting = 2;
  DraftStats restored;
  ASSERT_TRUE(restore(numbers_of(drafts), &restored));
  EXPECT_EQ(restored.streams, 0);
  EXPECT_EQ(restored.drafting, 0);
}

template <class T>
void expect_others_refused(T& from) {
  const std::vector<double> numbers = numbers_of(from);
  const auto refused = [&](const std::vector<double>& wrong) {
    T to;
    const std::vector<double> before = numbers_of(to);
    const bool taken = restore(wrong, &to);
    if (!taken) EXPECT_EQ(numbers_of(to), before) << "a refused list changes nothing";
    return !taken;
  };
  for (const size_t size : {size_t{0}, size_t{1}, numbers.size() - 1}) {
    EXPECT_TRUE(refused({numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(size)})) << size;
  }
  std::vector<double> longer = numbers;
  longer.push_back(1);
  EXPECT_TRUE(refused(longer));
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (const double wrong : {std::numeric_limits<double>::quiet_NaN(), 1e300, -1e300,
                               std::numeric_limits<double>::infinity()}) {
      std::vector<double> other = numbers;
      other[i] = wrong;
      ASSERT_TRUE(refused(other)) << i << ": " << wrong;
    }
  }
}

TEST(SavedNumbers, OthersAreRefused) {
  BatchTime times = some_times();
  expect_others_refused(times);
  DraftStats drafts;
  fill(&drafts);
  expect_others_refused(drafts);
  TreeStats trees;
  fill(&trees);
  expect_others_refused(trees);
}

// Files of older versions have classes for matches of 1 to 4 tokens only.
TEST(SavedNumbers, OfOlderDraftsAreTaken) {
  constexpr int kOldEvents = 59, kOthers = 13;
  std::vector<double> old;
  for (int event = 0; event < kOldEvents; ++event) {
    for (const double x : {1.0 * event, 2.0 * event, 100.0 + event}) old.push_back(x);
  }
  for (int i = 0; i < kOthers; ++i) old.push_back(1 + i);
  DraftStats drafts;
  EXPECT_FALSE(restore(std::span<const double>(old), &drafts));
  ASSERT_TRUE(restore(DraftStats::upgraded(old), &drafts));
  using A = DraftAcceptance;
  const auto expect_old = [&](int event, int was) {
    EXPECT_EQ(drafts.acceptance.observations(event), 100 + was) << event;
  };
  expect_old(A::small(0.5F), 3);
  expect_old(A::lookup(1, false), 10);
  expect_old(A::lookup(4, false), 13);
  expect_old(A::lookup(7, true), 17);
  expect_old(A::parallel(0.01F), 18);
  expect_old(A::next(A::small(0.01F)), 28);
  expect_old(A::next(A::lookup(2, true)), 28 + 15);
  expect_old(A::next(A::kAfterAll), 56);
  expect_old(A::next(A::kAfterSome), 57);
  expect_old(A::kNextParallel, 58);
  EXPECT_EQ(drafts.acceptance.observations(A::lookup(8, false)), 0);
  EXPECT_EQ(drafts.acceptance.observations(A::lookup({4, true}, false)), 0);
  EXPECT_EQ(drafts.with_small.rounds, 1);
  EXPECT_EQ(drafts.since_further, 13);
  const std::vector<double> numbers = numbers_of(drafts);
  EXPECT_EQ(DraftStats::upgraded(numbers), numbers);
}

TEST(SavedNumbers, EachMatchHasAClass) {
  using A = DraftAcceptance;
  EXPECT_EQ(A::lookup(3, false) + 1, A::lookup(4, false));
  EXPECT_EQ(A::lookup(4, false), A::lookup(7, false));
  EXPECT_EQ(A::lookup(7, false) + 1, A::lookup(8, false));
  EXPECT_EQ(A::lookup(15, false) + 1, A::lookup(16, false));
  EXPECT_EQ(A::lookup(31, false) + 1, A::lookup(32, false));
  EXPECT_EQ(A::lookup(32, false), A::lookup(64, false));
  EXPECT_EQ(A::lookup(64, false) + 1, A::lookup({4, true}, false));
  EXPECT_EQ(A::lookup({64, true}, false) + 1, A::lookup(1, true));
  EXPECT_EQ(A::lookup({64, true}, true) + 1, A::kParallel);
}

// Two sizes with the same rows have no line between them.
TEST(SavedNumbers, SizesOfBatchesAscend) {
  BatchTime times;
  times.observe(1, 0.1);
  times.observe(2, 0.2);
  std::vector<double> numbers = numbers_of(times);
  BatchTime restored;
  ASSERT_TRUE(restore(numbers, &restored));
  const auto two = std::find(numbers.begin() + 3, numbers.end(), 2.0) + 1;  // the rows of its size
  ASSERT_EQ(*two, 2);
  *two = 1;
  EXPECT_FALSE(restore(numbers, &restored));
  *two = 1.5;
  EXPECT_TRUE(restore(numbers, &restored));
}

}  // namespace
}  // namespace tandem
