#include "engine/sched/timers.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(Timers, TheEarliestFirstAndNoneBeforeItsTime) {
  Timers timers;
  EXPECT_EQ(timers.next(), kNever);
  EXPECT_EQ(timers.take_due(TimePoint::max()), std::nullopt);
  timers.set(TimePoint(3s), 1);
  timers.set(TimePoint(1s), 2);
  timers.set(kNever, 3);
  EXPECT_EQ(timers.next(), TimePoint(1s));
  EXPECT_EQ(timers.take_due(TimePoint(1s) - 1ns), std::nullopt);
  EXPECT_EQ(timers.take_due(TimePoint(9s)), 2U);
  EXPECT_EQ(timers.take_due(TimePoint(9s)), 1U);
  EXPECT_EQ(timers.take_due(TimePoint(9s)), std::nullopt);
}

TEST(Timers, OneIsTakenBackAtATime) {
  Timers timers;
  timers.set(TimePoint(1s), 1);
  timers.set(TimePoint(1s), 1);
  timers.set(TimePoint(1s), 2);
  timers.drop(TimePoint(1s), 1);
  timers.drop(TimePoint(2s), 2);  // not set
  EXPECT_EQ(timers.take_due(TimePoint(1s)), 1U);
  EXPECT_EQ(timers.take_due(TimePoint(1s)), 2U);
  EXPECT_EQ(timers.next(), kNever);
}

}  // namespace
}  // namespace tandem
