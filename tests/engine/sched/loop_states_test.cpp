// Every state of a request with every cause of an end: it ends once with the right status, its
// pages and coroutines are released, and other requests are not affected.
#include <functional>
#include <string>

#include "engine/decode/autoregressive.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kMuchLater = 1000s;

enum class In {
  kWaiting,
  kPrefill,
  kDecode,
  kPaused,     // for pages
  kHeld,       // for its reader
  kHeldEmpty,  // for its reader, without its pages
  kFollowing,  // a choice that waits for the prompt's rows
  kEnding,     // ended; a device still works on it
};
enum class By {
  kStatus,
  kCancel,
  kDeadline,
  kTimeLimit,
  kAll,         // shutdown
  kStall,       // its reader never resumes
  kBatchError,  // in a batch of its own
  kDeviceLost,
};
const char* const kInNames[] = {"Waiting", "Prefill",   "Decode",    "Paused",
                                "Held",    "HeldEmpty", "Following", "Ending"};
const char* const kByNames[] = {"Status", "Cancel", "Deadline",   "TimeLimit",
                                "All",    "Stall",  "BatchError", "DeviceLost"};

struct Case {
  In in;
  By by;
};

// Autoregressive decoding whose frames are counted by the owners of `alive`.
Task<void> counted(Gen g, std::shared_ptr<int> alive) {
  co_await autoregressive(g);
  alive.reset();
}

class EndsEarly : public testing::TestWithParam<Case> {
 protected:
  static BoxOptions options(In in) {
    BoxOptions o;
    o.limits.prefill_chunk_rows = 4;
    o.limits.step_rows = 8;
    o.limits.queue_seconds = 1e6;
    o.limits.stalled_stream_seconds = 500;
    o.limits.slow_reader_hold_seconds = in == In::kHeldEmpty ? 0 : 1e6;
    if (in == In::kWaiting) o.limits.max_running = 1;
    if (in == In::kPaused) o.models[0].pool.pages = 8;
    return o;
  }
  static bool long_prompt(In in) { return in == In::kPrefill || in == In::kFollowing; }
  static std::vector<Token> victim_prompt(In in) {
    return std::vector<Token>(long_prompt(in) ? 20 : 3, 7);
  }
  SequenceSpec count(SequenceSpec s) const {
    s.method = [alive = &alive_](Gen g) { return counted(g, *alive); };
    return s;
  }
  SequenceSpec victim(Box& box) const {
    const In in = GetParam().in;
    SequenceSpec s = count(box.spec(victim_prompt(in), long_prompt(in) ? 5 : 28));
    if (GetParam().by == By::kDeadline) s.deadline = box.clock.now() + kMuchLater;
    if (GetParam().by == By::kTimeLimit) s.time_limit = box.clock.now() + kMuchLater;
    return s;
  }
  // Brings the request to its state.
  static bool arrive(Box& box, const Recorder& r, RequestId id, In in) {
    int batches = 0;
    switch (in) {
      case In::kWaiting:
        return box.pump_until([&] { return box.loop->device_busy(); });
      case In::kPrefill:
      case In::kFollowing:
        box.backends[0].set_faults([&](const Batch&) { return ++batches, Fault(); });
        box.pump_until([&] { return batches == 3; });
        box.backends[0].set_faults(nullptr);
        return r.tokens.empty();
      case In::kDecode:
        return box.pump_until([&] { return r.tokens.size() == 3; });
      case In::kPaused:
        return box.pump_until([&] { return box.metrics.preemptions.value() > 0; });
      case In::kHeld:
      case In::kHeldEmpty:
        if (!box.pump_until([&] { return r.tokens.size() == 3; })) return false;
        box.loop->pause(id);
        for (int i = 0; i < 12; ++i) box.tick();
        return r.tokens.size() <= 4 && (in == In::kHeld || box.metrics.preemptions.value() == 1);
      case In::kEnding:
        if (!box.pump_until([&] { return r.tokens.size() == 3; })) return false;
        while (!box.loop->device_busy()) box.loop->step();
        box.loop->stop(id, absl::CancelledError("first"));
        box.loop->step();
        return r.ends == 1 && box.loop->device_busy();
    }
    return false;
  }
  static void strike(Box& box, RequestId id, By by) {
    const auto fail = [&](absl::Status status) {
      box.backends[0].set_faults([status](const Batch&) {
        Fault f;
        f.status = status;
        return f;
      });
      // The batch under way succeeds; the next one fails.
      for (int done = 0; done < 2;) {
        while (box.loop->step()) {
        }
        if (!box.timer.fire_next()) return;
        ++done;
      }
      box.loop->step();
      box.backends[0].set_faults(nullptr);
    };
    switch (by) {
      case By::kStatus:
        return box.loop->stop(id, absl::CancelledError("gone"));
      case By::kCancel:
        return box.loop->stop(id, absl::OkStatus());
      case By::kDeadline:
      case By::kTimeLimit:
        return box.clock.advance_to(TimePoint(kMuchLater));
      case By::kAll:
        return box.loop->stop_all(absl::UnavailableError("shutdown"));
      case By::kStall:
        box.loop->pause(id);
        box.loop->step();
        return box.clock.advance(500s);
      case By::kBatchError:
        return fail(absl::InternalError("xid 13"));
      case By::kDeviceLost:
        return fail(absl::UnavailableError("fell off the bus"));
    }
  }
  static void expect_ended(const Recorder& r, In in, By by) {
    ASSERT_EQ(r.ends, 1);
    if (in == In::kEnding) {
      EXPECT_EQ(r.end.status.message(), "first");
      return;
    }
    absl::StatusCode code = absl::StatusCode::kOk;
    switch (by) {
      case By::kStatus:
        code = absl::StatusCode::kCancelled;
        break;
      case By::kDeadline:
        code = absl::StatusCode::kDeadlineExceeded;
        break;
      case By::kAll:
      case By::kDeviceLost:
        code = absl::StatusCode::kUnavailable;
        break;
      case By::kStall:
        code = absl::StatusCode::kResourceExhausted;
        break;
      case By::kBatchError:
        code = absl::StatusCode::kInternal;
        break;
      case By::kCancel:
        EXPECT_EQ(r.end.reason, FinishReason::kCancelled);
        break;
      case By::kTimeLimit:
        EXPECT_EQ(r.end.reason, FinishReason::kTimeLimit);
        break;
    }
    EXPECT_EQ(r.end.status.code(), code) << r.end.status;
  }
  int64_t coroutines() const { return alive_.use_count() - 1; }

  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

TEST_P(EndsEarly, OnceAndOthersContinue) {
  const auto [in, by] = GetParam();
  Box box{options(in)};
  const std::vector<Token> prompt = {1, 2, 3};
  const bool shared = by != By::kBatchError;  // a batch error would end the others too
  std::shared_ptr<Recorder> other, late;
  if (shared) other = box.submit(count(box.spec(prompt, 28)));
  const SequenceSpec spec = victim(box);
  const auto victims = box.submit(spec, in == In::kFollowing ? 3 : 1);
  const auto& r = victims.back();
  if (shared) late = box.submit(count(box.spec(prompt, 4)));
  ASSERT_TRUE(arrive(box, *r, spec.id, in));
  ASSERT_EQ(r->ends, in == In::kEnding ? 1 : 0);
  strike(box, spec.id, by);
  box.loop->step();
  const auto known = box.greedy(victim_prompt(in), 28);
  for (const auto& v : victims) {
    expect_ended(*v, in, by);
    EXPECT_TRUE(std::equal(v->tokens.begin(), v->tokens.end(), known.begin()));
  }
  box.pump();  // the recorders object to anything after the end
  for (const auto& o : {other, late}) {
    if (!shared) continue;
    ASSERT_EQ(o->ends, 1);
    if (by == By::kAll || by == By::kDeviceLost) continue;
    EXPECT_EQ(o->tokens, box.greedy(prompt, o == other ? 28 : 4));
  }
  EXPECT_EQ(coroutines(), 0);
  EXPECT_EQ(box.metrics.requests_paused.value(), 0);
  EXPECT_EQ(box.metrics.series.front().requests_running.value(), 0);
  box.expect_idle();
  // The next request is served, unless the device is lost.
  const auto next = box.submit(box.spec(prompt, 2));
  box.pump();
  EXPECT_EQ(next->end.status.code(),
            by == By::kDeviceLost ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk);
}

TEST_P(EndsEarly, PagesAreFreeOneStepAfterTheDevice) {
  const auto [in, by] = GetParam();
  if (in != In::kPrefill && in != In::kDecode && in != In::kFollowing)
    return;                                                    // others need a shared batch
  if (by == By::kBatchError || by == By::kDeviceLost) return;  // the device has answered
  Box box{options(in)};
  const SequenceSpec spec = victim(box);
  const auto r = box.submit(spec, in == In::kFollowing ? 2 : 1);
  ASSERT_TRUE(arrive(box, *r[0], spec.id, in));
  ASSERT_TRUE(box.loop->device_busy());
  strike(box, spec.id, by);
  box.loop->step();
  expect_ended(*r[0], in, by);
  EXPECT_EQ(coroutines(), 0);
  EXPECT_GT(box.used_pages(), 0) << "the device still reads them";
  EXPECT_EQ(box.loop->live(), 1);
  box.timer.fire_next();
  box.loop->step();
  box.expect_idle();
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(kInNames[static_cast<int>(info.param.in)]) + "By" +
         kByNames[static_cast<int>(info.param.by)];
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int in = 0; in <= static_cast<int>(In::kEnding); ++in) {
    for (int by = 0; by <= static_cast<int>(By::kDeviceLost); ++by) {
      const Case c = {static_cast<In>(in), static_cast<By>(by)};
      const bool in_a_batch = c.in == In::kPrefill || c.in == In::kDecode || c.in == In::kFollowing;
      if (c.by != By::kBatchError || in_a_batch) cases.push_back(c);
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, EndsEarly, testing::ValuesIn(all_cases()), case_name);

// A lost device ends only the requests that use it. Another device abandons copies that it waits
// for.
TEST(LoopStates, ALostDeviceTakesOnlyItsOwn) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].device = 1;
  Box box{o};
  SequenceSpec there = box.spec({1, 2}, 20);
  there.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  SequenceSpec both = box.spec({1, 2}, 20);
  edit_cast(both).roles.push_back({Role::kSmall, ModelId(1), 0});
  const auto a = box.submit(box.spec({1, 2}, 20));
  const auto b = box.submit(std::move(there));
  const auto c = box.submit(std::move(both));
  ASSERT_TRUE(box.pump_until([&] { return a->tokens.size() == 3; }));
  box.backends[0].set_faults([](const Batch&) {
    Fault f;
    f.status = absl::UnavailableError("fell off the bus");
    return f;
  });
  box.pump();
  EXPECT_TRUE(absl::IsUnavailable(a->end.status));
  EXPECT_TRUE(absl::IsUnavailable(c->end.status));
  EXPECT_EQ(b->tokens, box.greedy({1, 2}, 20, 1));
  const auto refused = box.submit(box.spec({1, 2}, 2));
  SequenceSpec fine = box.spec({1, 2}, 2);
  fine.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  const auto served = box.submit(std::move(fine));
  box.pump();
  EXPECT_TRUE(absl::IsUnavailable(refused->end.status));
  EXPECT_TRUE(served->ok());
  EXPECT_EQ(box.metrics.rejected[static_cast<size_t>(RejectReason::kDeviceLost)].value(), 1);
  box.expect_idle();
}

}  // namespace
}  // namespace tandem::test
