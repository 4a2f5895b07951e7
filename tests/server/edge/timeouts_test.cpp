#include "server/edge/timeouts.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Timeout = Timeouts::Timeout;

struct TimeoutWorld {
  VirtualClock clock;
  Timeouts timeouts{&clock};
  std::string ran;

  Timeouts::Expire appends(char name) {
    return [this, name] { return [this, name] { ran += name; }; };
  }
};

TEST(Timeouts, RunInTheOrderOfTheirTimes) {
  TimeoutWorld world;
  Timeout a, b, c;
  a.start(&world.timeouts, 3s, world.appends('a'));
  b.start(&world.timeouts, 1s, world.appends('b'));
  c.start(&world.timeouts, 2s, world.appends('c'));
  EXPECT_EQ(world.timeouts.run_expired(), TimePoint(1s));
  EXPECT_EQ(world.ran, "");
  world.clock.advance(2s);
  EXPECT_EQ(world.timeouts.run_expired(), TimePoint(3s));
  EXPECT_EQ(world.ran, "bc");
  world.clock.advance(1s);
  EXPECT_EQ(world.timeouts.run_expired(), kNever);
  EXPECT_EQ(world.ran, "bca");
}

TEST(Timeouts, AStoppedOneDoesNotRun) {
  TimeoutWorld world;
  Timeout stopped;
  stopped.start(&world.timeouts, 1s, world.appends('a'));
  {
    Timeout destroyed;
    destroyed.start(&world.timeouts, 1s, world.appends('b'));
  }
  stopped.stop();
  stopped.stop();
  Timeout never_started;
  never_started.stop();
  world.clock.advance(1h);
  EXPECT_EQ(world.timeouts.run_expired(), kNever);
  EXPECT_EQ(world.ran, "");
}

TEST(Timeouts, AFunctionMayStopOthersAndItself) {
  TimeoutWorld world;
  auto own = std::make_unique<Timeout>();
  Timeout other;
  own->start(&world.timeouts, 1s, [&] {
    return [&] {
      world.ran += 'a';
      own.reset();
      other.stop();
    };
  });
  other.start(&world.timeouts, 2s, world.appends('b'));
  world.clock.advance(1s);
  world.timeouts.run_expired();
  world.clock.advance(1h);
  EXPECT_EQ(world.timeouts.run_expired(), kNever);
  EXPECT_EQ(world.ran, "a");
}

TEST(Timeouts, AnEmptyFunctionIsSkipped) {
  TimeoutWorld world;
  Timeout timeout;
  timeout.start(&world.timeouts, 1s, [&] {
    world.ran += 'x';
    return std::function<void()>();
  });
  world.clock.advance(1s);
  world.timeouts.run_expired();
  EXPECT_EQ(world.ran, "x");
}

// The thread waits for the earliest, also if it is started last.
TEST(Timeouts, TheThreadRunsThem) {
  const SteadyClock clock;
  Timeouts timeouts(&clock);
  timeouts.run_thread();
  std::promise<void> early, late;
  Timeout slow, second, first;
  slow.start(&timeouts, 1h, [] { return std::function<void()>(); });
  second.start(&timeouts, 2ms, [&] { return [&] { late.set_value(); }; });
  first.start(&timeouts, 1ms, [&] { return [&] { early.set_value(); }; });
  early.get_future().wait();
  late.get_future().wait();
  slow.stop();
}

// ThreadSanitizer watches: calls start and stop timeouts while the thread runs them.
TEST(Timeouts, StartAndStopFromManyThreads) {
  const SteadyClock clock;
  Timeouts timeouts(&clock);
  timeouts.run_thread();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&timeouts] {
      for (int i = 0; i < 500; ++i) {
        int64_t runs = 0;
        {
          Timeout timeout;
          timeout.start(&timeouts, std::chrono::microseconds(i % 50), [&runs] {
            ++runs;  // under the lock
            return std::function<void()>();
          });
        }
        EXPECT_LE(runs, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tandem
