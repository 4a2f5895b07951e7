#include "engine/backend/fake/timer.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(VirtualTimer, MovesTheClockAndKeepsTheOrder) {
  VirtualClock clock;
  VirtualTimer timer(&clock);
  std::vector<int> order;
  timer.at(TimePoint(2s), [&] { order.push_back(3); });
  timer.at(TimePoint(1s), [&] { order.push_back(1); });
  timer.at(TimePoint(1s), [&] {
    order.push_back(2);
    timer.at(clock.now(), [&] { order.push_back(4); });  // due at once
  });
  EXPECT_EQ(timer.next(), TimePoint(1s));
  while (timer.fire_next()) {
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 4, 3}));
  EXPECT_EQ(clock.now(), TimePoint(2s));
  EXPECT_EQ(timer.next(), kNever);
}

TEST(ThreadTimer, CallsWhatIsLeftWhenItGoesInOrder) {
  std::vector<int> order;
  {
    ThreadTimer timer;
    const TimePoint far = std::chrono::steady_clock::now() + 1h;
    timer.at(far + 1s, [&] { order.push_back(3); });
    timer.at(far, [&] { order.push_back(1); });
    timer.at(far, [&] { order.push_back(2); });
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(ThreadTimer, CallsWhatIsDue) {
  ThreadTimer timer;
  std::mutex mutex;
  std::condition_variable changed;
  int called = 0;
  for (int i = 0; i < 100; ++i) {
    timer.at(std::chrono::steady_clock::now(), [&] {
      const std::lock_guard lock(mutex);
      ++called;
      changed.notify_one();
    });
  }
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, 30s, [&] { return called == 100; }));
}

}  // namespace
}  // namespace tandem
