// Early ends of requests, and their cleanup. (Every state and cause:
// loop_states_test.cpp.)
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLater = 1000s;

TEST(LoopEnd, StoppingTwiceOrUnknownIsIgnored) {
  Box box{BoxOptions()};
  const auto r = box.submit(box.spec({1, 2}, 20));
  box.loop->stop(99, absl::InternalError("who?"));
  ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() == 2; }));
  box.loop->stop(1, absl::CancelledError("a"));
  box.loop->stop(1, absl::InternalError("b"));
  box.loop->stop_all(absl::InternalError("c"));
  box.pump();
  EXPECT_TRUE(absl::IsCancelled(r->end.status));
  box.loop->stop(1, absl::CancelledError("d"));
  box.pump();
  box.expect_idle();
}

TEST(LoopEnd, ADeadlineThatHasPassedIsNotAdmitted) {
  Box box{BoxOptions()};
  box.clock.advance(5s);
  SequenceSpec s = box.spec({1, 2}, 20);
  s.deadline = box.clock.now() - 1s;
  const auto r = box.submit(std::move(s));
  box.pump();
  EXPECT_TRUE(absl::IsDeadlineExceeded(r->end.status));
  EXPECT_EQ(r->admitted, 0);
  box.expect_idle();
}

// The answer and the cancellation arrive in one step: the ready waiter is not resumed.
TEST(LoopEnd, ACancelRightBehindTheAnswer) {
  Box box{BoxOptions()};
  const auto r = box.submit(box.spec({1, 2}, 20));
  ASSERT_TRUE(box.pump_until([&] { return r->tokens.size() == 2; }));
  while (!box.loop->device_busy()) box.loop->step();
  box.timer.fire_next();
  box.loop->stop(1, absl::CancelledError("now"));
  box.pump();
  EXPECT_TRUE(absl::IsCancelled(r->end.status));
  EXPECT_EQ(r->tokens.size(), 2U);
  box.expect_idle();
}

// Ended requests leave no timers.
TEST(LoopEnd, FinishedRequestsLeaveNoTimers) {
  Box box{BoxOptions()};
  SequenceSpec s = box.spec({1}, 2);
  s.deadline = s.time_limit = box.clock.now() + kLater;
  box.submit(std::move(s));
  box.pump();
  box.expect_idle();
  EXPECT_LT(seconds(box.clock.now() - TimePoint{}), 1.0);
}

}  // namespace
}  // namespace tandem::test
