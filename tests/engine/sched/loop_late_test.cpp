// Answers that wait for a constraint delay their own request only.
#include <deque>
#include <map>

#include "engine/decode/speculative.h"
#include "tests/engine/decode/constraint_contract.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

// A constraint whose masks come when the test releases them.
struct Held {
  int known = 0;       // paths of fewer tokens are known
  int asked_late = 0;  // answers that were not
  std::deque<absl::AnyInvocable<void()>> jobs;

  std::shared_ptr<TokenConstraint> constraint(uint64_t seed) {
    return std::make_shared<LateConstraint>(
        std::make_shared<RandomConstraint>(AutomatonShape{seed, 40, {39}, false}),
        [this](std::span<const Token> path) {
          const bool late = static_cast<int>(path.size()) >= known;
          asked_late += late;
          return late;
        },
        [this](absl::AnyInvocable<void()> job) { jobs.push_back(std::move(job)); });
  }
  void release_one() {
    jobs.front()();
    jobs.pop_front();
  }
};

struct LateBox : Box {
  explicit LateBox(BoxOptions o = {}) : Box(std::move(o)) {}

  SequenceSpec constrained(std::vector<Token> prompt, int tokens,
                           std::shared_ptr<TokenConstraint> constraint) {
    SequenceSpec s = spec(std::move(prompt), tokens);
    s.stops.eos = {39};
    constrain(std::move(constraint), &s);
    return s;
  }
  // What autoregressive decoding gives under the same automaton.
  std::vector<Token> expected(const SequenceSpec& s, uint64_t seed) {
    SequenceSpec ar = s;
    constrain(std::make_shared<RandomConstraint>(AutomatonShape{seed, 40, {39}, false}), &ar);
    return reference::autoregressive(config(), ar.prompt, ar.warp, ar.stops.eos,
                                     ar.stops.max_new_tokens);
  }
  // Releases all jobs until the box is idle.
  void finish(Held& held) {
    for (pump(); !held.jobs.empty(); pump()) held.release_one();
  }
};

// Seeds whose automaton lets the answer to {1, 2, 3} have many tokens.
uint64_t long_seed(LateBox& box) {
  for (uint64_t seed = 1;; ++seed) {
    const SequenceSpec s = box.constrained({1, 2, 3}, 12, nullptr);
    if (box.expected(s, seed).size() == 12) return seed;
  }
}

TEST(LoopLate, OtherRequestsOfTheBatchGoOn) {
  LateBox box;
  const uint64_t seed = long_seed(box);
  Held held{.known = 3};
  SequenceSpec spec = box.constrained({1, 2, 3}, 12, held.constraint(seed));
  const std::vector<Token> expected = box.expected(spec, seed);
  size_t most_works = 0;
  box.backends[0].set_on_run(
      [&](const Batch& b) { most_works = std::max(most_works, b.works.size()); });
  const auto late = box.submit(std::move(spec));
  std::vector<std::shared_ptr<Recorder>> others;
  for (Token t = 4; t < 7; ++t) others.push_back(box.submit(box.spec({t, 5, 6}, 20)));
  const auto known = box.submit(box.constrained(
      {1, 2, 3}, 12, std::make_shared<RandomConstraint>(AutomatonShape{seed, 40, {39}, false})));
  box.pump();
  EXPECT_EQ(most_works, 5U) << "all in one batch at first";
  for (const auto& r : others) {
    EXPECT_TRUE(r->ok());
    EXPECT_EQ(r->tokens.size(), 20U);
  }
  EXPECT_EQ(known->tokens, expected);
  // Its own answer waits, and holds its memory.
  EXPECT_EQ(late->ends, 0);
  EXPECT_EQ(late->tokens.size(), 3U);
  EXPECT_EQ(held.jobs.size(), 1U);
  EXPECT_TRUE(box.loop->device_busy());
  held.release_one();
  box.pump();
  EXPECT_EQ(late->tokens.size(), 4U) << "and then the next one";
  // Requests that come meanwhile share no batch with it.
  const auto next = box.submit(box.spec({9, 9}, 5));
  box.pump();
  EXPECT_TRUE(next->ok());
  box.finish(held);
  EXPECT_TRUE(late->ok());
  EXPECT_EQ(late->tokens, expected);
  box.expect_idle();
}

TEST(LoopLate, ACancelledRequestReleasesItsMemoryWhenItsAnswerIsThere) {
  LateBox box;
  Held held;
  SequenceSpec spec = box.constrained({1, 2, 3, 4, 5}, 12, held.constraint(1));
  const RequestId id = spec.id;
  const auto late = box.submit(std::move(spec));
  box.pump();
  ASSERT_EQ(held.jobs.size(), 1U);
  box.loop->stop(id, absl::CancelledError("test"));
  box.pump();
  EXPECT_EQ(late->ends, 1);
  EXPECT_EQ(box.loop->live(), 1);
  EXPECT_GT(box.used_pages(), 0);
  held.release_one();
  box.pump();
  box.expect_idle();
}

TEST(LoopLate, ALostDeviceEndsTheRequest) {
  LateBox box;
  Held held;
  const auto late = box.submit(box.constrained({1, 2, 3}, 12, held.constraint(1)));
  box.pump();
  ASSERT_EQ(held.jobs.size(), 1U);
  box.backends[0].set_faults([](const Batch&) { return Fault{absl::UnavailableError("lost")}; });
  const auto other = box.submit(box.spec({4}, 4));
  box.pump();
  EXPECT_TRUE(absl::IsUnavailable(late->end.status));
  EXPECT_TRUE(absl::IsUnavailable(other->end.status));
  held.release_one();
  box.pump();
  box.expect_idle();
}

// An error among the logits that the device had not read.
TEST(LoopLate, AFailedAnswerEndsTheRequest) {
  LateBox box;
  Held held;
  box.backends[0].set_faults([](const Batch&) { return Fault{{}, {0}, {}}; });
  const auto late = box.submit(box.constrained({1, 2, 3}, 12, held.constraint(1)));
  box.pump();
  EXPECT_EQ(late->ends, 0);
  box.finish(held);
  EXPECT_EQ(late->end.status.code(), absl::StatusCode::kInternal);
  box.expect_idle();
}

// Passes that were launched behind a late one do not run, and run later.
TEST(LoopLate, PassesBehindALateOneRunAgain) {
  BoxOptions options;
  options.models.resize(2);
  LateBox box{options};
  const uint64_t seed = long_seed(box);
  Held held;
  std::map<TicketId, int> launched;
  box.backends[0].set_on_run([&](const Batch& b) {
    for (const Work& w : b.works) ++launched[w.ticket];
  });
  SequenceSpec spec = box.constrained({1, 2, 3}, 12, held.constraint(seed));
  const std::vector<Token> expected = box.expected(spec, seed);
  SpeculativeParams a;
  a.draft_tokens = 4;
  a.pace = Pace::kFixed;
  use_speculative(spec, a);
  const auto late = box.submit(std::move(spec));
  box.finish(held);
  EXPECT_TRUE(late->ok());
  EXPECT_EQ(late->tokens, expected);
  EXPECT_GT(held.asked_late, 5);
  int again = 0;
  for (const auto& [ticket, times] : launched) again += times > 1;
  EXPECT_GT(again, 0);
  box.expect_idle();
}

}  // namespace
}  // namespace tandem::test
