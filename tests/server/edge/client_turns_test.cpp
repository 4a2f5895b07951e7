#include "server/edge/client_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct TurnsBench {
  VirtualClock clock;
  // Before `turns`, whose destructor calls the tasks that still wait.
  std::vector<std::string> log;
  ClientTurns turns{0, &clock};

  uint64_t enter(const std::string& client, int64_t cost, const std::string& name) {
    return turns.enter(client, cost, [this, name](const absl::Status& status) {
      log.push_back(status.ok() ? name : name + ": " + std::string(status.message()));
    });
  }
  void all() {
    while (turns.run_one()) {
    }
  }
};

TEST(ClientTurns, OneClientsBacklogDoesNotDelayAnother) {
  TurnsBench run;
  for (int i = 0; i < 4; ++i) run.enter("many", 100, "m" + std::to_string(i));
  run.turns.run_one();
  run.enter("few", 100, "f0");
  run.enter("few", 100, "f1");
  run.all();
  EXPECT_THAT(run.log, ElementsAre("m0", "f0", "m1", "f1", "m2", "m3"));
}

TEST(ClientTurns, ServiceIsCountedInCost) {
  TurnsBench run;
  for (int i = 0; i < 3; ++i) run.enter("big", 1000, "B");
  for (int i = 0; i < 12; ++i) run.enter("small", 100, "s");
  run.all();
  std::string order;
  for (const std::string& each : run.log) order += each;
  EXPECT_EQ(order, "BssssssssssBssB");
}

// A client that sends one request after the other is counted like one that sends all at once.
TEST(ClientTurns, ServiceIsRememberedBetweenRequests) {
  TurnsBench run;
  for (int i = 0; i < 20; ++i) run.enter("small", 100, "s");
  std::string order;
  for (int i = 0; i < 22; ++i) {
    if (run.log.empty() || run.log.back() == "B") run.enter("big", 1000, "B");
    run.turns.run_one();
  }
  for (const std::string& each : run.log) order += each;
  EXPECT_EQ(order, "sB" + std::string(10, 's') + "B" + std::string(9, 's'));
}

TEST(ClientTurns, CancelledTasksAreCalledOnceAndAtOnce) {
  TurnsBench run;
  const uint64_t first = run.enter("a", 1, "a0");
  const uint64_t second = run.enter("a", 1, "a1");
  run.turns.cancel(second, absl::CancelledError("left"));
  EXPECT_THAT(run.log, ElementsAre("a1: left"));
  run.all();
  run.turns.cancel(first, absl::CancelledError("left"));
  run.turns.cancel(second, absl::CancelledError("left"));
  EXPECT_THAT(run.log, ElementsAre("a1: left", "a0"));
  EXPECT_EQ(run.turns.waiting(), 0U);
}

TEST(ClientTurns, StopEndsWhatWaitsAndWhatComes) {
  TurnsBench run;
  run.enter("a", 1, "a0");
  run.enter("b", 1, "b0");
  run.turns.stop(absl::UnavailableError("draining"));
  run.enter("c", 1, "c0");
  EXPECT_THAT(run.log, ElementsAre("a0: draining", "b0: draining", "c0: draining"));
  EXPECT_FALSE(run.turns.run_one());
}

TEST(ClientTurns, MeasuresTheOldestThatRunsAndNotTheQueue) {
  TurnsBench run;
  run.turns.enter("a", 1, [&run](const absl::Status&) {
    run.clock.advance(std::chrono::seconds(5));
    EXPECT_EQ(run.turns.longest_running(), std::chrono::seconds(5));
  });
  run.enter("a", 1, "later");
  run.clock.advance(std::chrono::hours(1));
  EXPECT_EQ(run.turns.longest_running(), Duration::zero());
  run.turns.run_one();
  EXPECT_EQ(run.turns.longest_running(), Duration::zero());
}

TEST(ClientTurns, ThreadsRunTasksOfOneClientSideBySide) {
  const SteadyClock clock;
  std::promise<void> first, second, both;
  std::vector<std::string> stopped;
  Mutex mutex;
  {
    ClientTurns turns(2, &clock);
    turns.enter("a", 1, [&](const absl::Status&) {
      first.set_value();
      second.get_future().wait();
    });
    turns.enter("a", 1, [&](const absl::Status&) {
      first.get_future().wait();
      second.set_value();
      both.set_value();
    });
    both.get_future().wait();
    for (int i = 0; i < 100; ++i) {
      turns.enter(std::to_string(i % 7), i, [&](const absl::Status& status) {
        const MutexLock lock(&mutex);
        stopped.push_back(status.ok() ? "ran" : "dropped");
      });
    }
  }
  EXPECT_EQ(stopped.size(), 100U) << "each task is called once";
}

}  // namespace
}  // namespace tandem
