#include "client/cli/load_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

namespace tandem::cli {
namespace {

using namespace std::chrono_literals;

TEST(ClosedLoop, SendsEachOnceAndNoMoreAtOnceThanAsked) {
  VirtualClock clock;
  clock.advance(5s);
  std::mutex mutex;
  std::multiset<int> sent;
  int now = 0, most = 0;
  const auto samples = closed_loop(clock, 40, 3, [&](int index, TimePoint begin, Sample* sample) {
    {
      const std::lock_guard lock(mutex);
      sent.insert(index);
      most = std::max(most, ++now);
    }
    clock.advance(1ms);
    sample->end = clock.now() - begin;
    const std::lock_guard lock(mutex);
    --now;
  });
  EXPECT_EQ(samples.size(), 40u);
  EXPECT_EQ(sent.size(), 40u);
  EXPECT_EQ(std::set<int>(sent.begin(), sent.end()).size(), 40u);
  EXPECT_LE(most, 3);
  for (const Sample& sample : samples) {
    EXPECT_GE(sample.due, Duration(0));
    EXPECT_GT(sample.end, sample.due);
  }
}

TEST(ClosedLoop, OfNoRequests) {
  EXPECT_TRUE(closed_loop(VirtualClock(), 0, 3, [](int, TimePoint, Sample*) { FAIL(); }).empty());
}

// More than a process may have threads whose stacks are kept until they are joined.
TEST(OpenLoop, ThreadsOfRequestsThatEndedAreGone) {
  VirtualClock clock;
  std::atomic<int> sent{0};
  const std::vector<Duration> due(40'000);
  open_loop(clock, due, [&](int, TimePoint, Sample*) { ++sent; });
  EXPECT_EQ(sent, 40'000);
}

TEST(OpenLoop, WhatIsDueKeepsItsTimeHoweverLateTheClientIs) {
  VirtualClock clock;
  clock.advance(1h);  // all of it is due already when the loop looks at the clock again
  const std::vector<Duration> due = {0ns, 0ns, 0ns};
  std::mutex mutex;
  std::set<int> sent;
  const auto samples = open_loop(clock, due, [&](int index, TimePoint begin, Sample* sample) {
    sample->end = clock.now() - begin + 3s;
    const std::lock_guard lock(mutex);
    sent.insert(index);
  });
  EXPECT_EQ(sent, (std::set<int>{0, 1, 2}));
  for (size_t i = 0; i < due.size(); ++i) {
    EXPECT_EQ(samples[i].due, due[i]);
    EXPECT_EQ(samples[i].end, Duration(3s));
  }
}

}  // namespace
}  // namespace tandem::cli
