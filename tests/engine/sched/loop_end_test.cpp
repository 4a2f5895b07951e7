// How requests end early: in every state, by every cause, once, and without harm to others.
#include <functional>
#include <string>

#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLater = 1000s;

enum class In { kWaiting, kPrefill, kDecode, kPaused };
enum class By { kStatus, kCancel, kDeadline, kTimeLimit, kAll };

struct Case {
  In in;
  By by;
};

class EndsEarly : public testing::TestWithParam<Case> {
 protected:
  static BoxOptions options(In in) {
    BoxOptions o;
    o.limits.prefill_chunk_rows = 4;
    o.limits.step_rows = 8;
    o.limits.queue_seconds = 1e6;
    if (in == In::kWaiting) o.limits.max_running = 1;
    if (in == In::kPaused) o.models[0].pool.pages = 8;
    return o;
  }
  static std::vector<Token> victim_prompt(In in) {
    return std::vector<Token>(in == In::kPrefill ? 20 : 3, 7);
  }
  SequenceSpec victim(Box& box) {
    SequenceSpec s = box.spec(victim_prompt(GetParam().in), GetParam().in == In::kPrefill ? 5 : 28);
    if (GetParam().by == By::kDeadline) s.deadline = box.clock.now() + kLater;
    if (GetParam().by == By::kTimeLimit) s.time_limit = box.clock.now() + kLater;
    return s;
  }
  // Brings the victim to its state.
  static bool arrive(Box& box, const Recorder& r, In in) {
    int batches = 0;
    switch (in) {
      case In::kWaiting:
        return box.pump_until([&] { return box.loop->device_busy(); });
      case In::kPrefill:
        box.backends[0].set_faults([&](const Batch&) { return ++batches, Fault(); });
        box.pump_until([&] { return batches == 3; });
        box.backends[0].set_faults(nullptr);
        return r.tokens.empty();
      case In::kDecode:
        return box.pump_until([&] { return r.tokens.size() == 3; });
      case In::kPaused:
        return box.pump_until([&] { return box.metrics.preemptions.value() > 0; });
    }
    return false;
  }
  static void strike(Box& box, RequestId id, By by) {
    switch (by) {
      case By::kStatus:
        box.loop->stop(id, absl::CancelledError("gone"));
        break;
      case By::kCancel:
        box.loop->stop(id, absl::OkStatus());
        break;
      case By::kDeadline:
      case By::kTimeLimit:
        box.clock.advance_to(TimePoint(kLater));
        break;
      case By::kAll:
        box.loop->stop_all(absl::UnavailableError("shutdown"));
        break;
    }
  }
  static void expect_ended(const Recorder& r, By by) {
    ASSERT_EQ(r.ends, 1);
    switch (by) {
      case By::kStatus:
        EXPECT_TRUE(absl::IsCancelled(r.end.status));
        break;
      case By::kDeadline:
        EXPECT_TRUE(absl::IsDeadlineExceeded(r.end.status));
        break;
      case By::kAll:
        EXPECT_TRUE(absl::IsUnavailable(r.end.status));
        break;
      case By::kCancel:
        EXPECT_TRUE(r.end.status.ok());
        EXPECT_EQ(r.end.reason, FinishReason::kCancelled);
        break;
      case By::kTimeLimit:
        EXPECT_TRUE(r.end.status.ok());
        EXPECT_EQ(r.end.reason, FinishReason::kTimeLimit);
        break;
    }
  }
};

TEST_P(EndsEarly, OnceAndOthersGoOn) {
  const auto [in, by] = GetParam();
  Box box{options(in)};
  const std::vector<Token> prompt = {1, 2, 3};
  const auto other = box.submit(box.spec(prompt, 28));
  const auto r = box.submit(victim(box));
  const RequestId id = box.last_id;
  const auto late = box.submit(box.spec(prompt, 4));
  ASSERT_TRUE(arrive(box, *r, in));
  ASSERT_EQ(r->ends, 0);
  strike(box, id, by);
  box.loop->step();
  expect_ended(*r, by);
  const auto known = box.greedy(victim_prompt(in), 28);
  EXPECT_TRUE(std::equal(r->tokens.begin(), r->tokens.end(), known.begin()));
  box.pump();  // the recorder objects to anything after the end
  for (const auto& o : {other, late}) {
    ASSERT_EQ(o->ends, 1);
    if (by == By::kAll) continue;
    EXPECT_EQ(o->tokens, box.greedy(prompt, o == other ? 28 : 4));
  }
  box.expect_idle();
}

TEST_P(EndsEarly, PagesAreFreeOneStepAfterTheDevice) {
  const auto [in, by] = GetParam();
  if (in == In::kWaiting || in == In::kPaused) return;  // these need company
  Box box{options(in)};
  const auto r = box.submit(victim(box));
  ASSERT_TRUE(arrive(box, *r, in));
  ASSERT_TRUE(box.loop->device_busy());
  strike(box, box.last_id, by);
  box.loop->step();
  expect_ended(*r, by);
  EXPECT_GT(box.used_pages(), 0) << "the device still reads them";
  EXPECT_EQ(box.loop->live(), 1);
  box.timer.fire_next();
  box.loop->step();
  box.expect_idle();
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  static const char* const in[] = {"Waiting", "Prefill", "Decode", "Paused"};
  static const char* const by[] = {"Status", "Cancel", "Deadline", "TimeLimit", "All"};
  return std::string(in[static_cast<int>(info.param.in)]) + "By" +
         by[static_cast<int>(info.param.by)];
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const In in : {In::kWaiting, In::kPrefill, In::kDecode, In::kPaused}) {
    for (const By by : {By::kStatus, By::kCancel, By::kDeadline, By::kTimeLimit, By::kAll}) {
      cases.push_back({in, by});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, EndsEarly, testing::ValuesIn(all_cases()), case_name);

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

// The answer and the cancel come in one step: the waiter that the answer made ready is forgotten.
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

// Timers go with their requests: thousands of finished ones leave nothing behind to wake up for.
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
