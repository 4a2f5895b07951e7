#include "engine/base/stats.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(Histogram, PutsAValueIntoTheFirstBucketWhoseBoundIsNotBelowIt) {
  const double bounds[] = {1, 2, 5};
  Histogram h(bounds);
  for (const double v : {0.5, 1.0, 1.5, 5.0, 5.1, 100.0}) h.observe(v);
  EXPECT_EQ(h.count(0), 2);  // 0.5, and 1 itself: Prometheus' bounds are inclusive
  EXPECT_EQ(h.count(1), 1);
  EXPECT_EQ(h.count(2), 1);
  EXPECT_EQ(h.count(3), 2);  // above the last bound
  EXPECT_EQ(h.total(), 6);
  EXPECT_DOUBLE_EQ(h.sum(), 113.1);
}

TEST(Cells, LoseNothingBetweenThreads) {
  constexpr int kThreads = 4, kTimes = 10'000;
  const double bounds[] = {0.5};
  Counter counter;
  Gauge gauge;
  Histogram h(bounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) {
        counter.add(2);
        gauge.add(1);
        h.observe(i % 2);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(counter.value(), 2 * kThreads * kTimes);
  EXPECT_EQ(gauge.value(), kThreads * kTimes);
  EXPECT_EQ(h.count(0), kThreads * kTimes / 2);
  EXPECT_EQ(h.sum(), kThreads * kTimes / 2);
}

}  // namespace
}  // namespace tandem
