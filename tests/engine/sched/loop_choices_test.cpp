// Several choices of one request.
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

SequenceSpec sampled(Box& box, std::vector<Token> prompt, int tokens) {
  SequenceSpec s = box.spec(std::move(prompt), tokens);
  s.warp.temperature = 1.2F;
  s.warp.seed = 11;
  return s;
}

const std::vector<Token> kLongPrompt = {7, 3, 9, 1, 4, 4, 2, 8, 5, 30, 31};

std::vector<Token> alone(uint32_t choice, int tokens) {
  Box box{BoxOptions()};
  SequenceSpec s = sampled(box, kLongPrompt, tokens);
  s.warp.choice = choice;
  const auto r = box.submit(std::move(s));
  box.pump();
  return r->tokens;
}

TEST(LoopChoices, EachIsAsAlone) {
  for (const int64_t pages : {256, 9}) {  // without and with preemption
    BoxOptions o;
    o.limits.prefill_chunk_rows = 4;
    o.models[0].pool.pages = pages;
    Box box{o};
    const auto all = box.submit(sampled(box, kLongPrompt, 20), 5);
    box.pump();
    for (uint32_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(all[i]->ok()) << all[i]->end.status;
      EXPECT_EQ(all[i]->tokens, alone(i, 20)) << i;
    }
    EXPECT_NE(all[0]->tokens, all[1]->tokens);
    box.expect_idle();
  }
}

TEST(LoopChoices, GreedyOnesAreEqual) {
  Box box{BoxOptions()};
  const auto all = box.submit(box.spec(kLongPrompt, 9), 3);
  box.pump();
  for (const auto& r : all) EXPECT_EQ(r->tokens, box.greedy(kLongPrompt, 9));
}

// The first choice may end before the others start.
TEST(LoopChoices, OfOneTokenEach) {
  Box box{BoxOptions()};
  const auto all = box.submit(sampled(box, kLongPrompt, 1), 4);
  box.pump();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(all[i]->tokens, alone(i, 1)) << i;
  box.expect_idle();
}

TEST(LoopChoices, TheOthersBeginWithTheRowsOfThePrompt) {
  Box box{BoxOptions()};
  int64_t rows = 0;
  box.backends[0].set_faults([&](const Batch& b) {
    rows += b.run_rows();
    return Fault();
  });
  box.submit(sampled(box, kLongPrompt, 1), 4);
  box.pump();
  EXPECT_EQ(rows, static_cast<int64_t>(kLongPrompt.size()) + 3) << "the last row again for each";
}

TEST(LoopChoices, CountAsOneRequest) {
  BoxOptions o;
  o.limits.max_waiting = 2;
  o.limits.max_running = 4;
  Box box{o};
  const auto a = box.submit(sampled(box, kLongPrompt, 6), 4);
  box.loop->step();
  const Series& m = box.metrics.series.front();
  EXPECT_EQ(m.requests_running.value(), 1);
  const auto b = box.submit(sampled(box, kLongPrompt, 6), 4);
  const auto c = box.submit(sampled(box, kLongPrompt, 6), 4);
  const auto d = box.submit(sampled(box, kLongPrompt, 6), 4);
  const auto large = box.submit(sampled(box, kLongPrompt, 6), 5);
  box.loop->step();
  EXPECT_EQ(box.metrics.requests_waiting.value(), 2);
  box.pump();
  for (const auto& group : {a, b, c}) {
    for (const auto& r : group) EXPECT_TRUE(r->ok());
  }
  for (const auto& r : d) {  // all or none
    EXPECT_EQ(r->end.status.code(), absl::StatusCode::kResourceExhausted);
  }
  for (const auto& r : large) {
    EXPECT_EQ(r->end.status.message(), "n: 5; allowed: at most 4 (limits.max_running)");
  }
  EXPECT_EQ(m.finished[static_cast<size_t>(FinishReason::kMaxTokens)].value(), 3);
  EXPECT_EQ(m.generated_tokens.value(), 3 * 4 * 6);
  EXPECT_EQ(m.prompt_tokens.value(), 3 * static_cast<int64_t>(kLongPrompt.size()));
  EXPECT_EQ(m.time_to_first_token.total(), 3);
  EXPECT_EQ(m.e2e_latency.total(), 3);
  EXPECT_EQ(m.queue_time.total(), 3);
  EXPECT_EQ(m.requests_running.value(), 0);
  EXPECT_EQ(box.metrics.rejected[static_cast<size_t>(RejectReason::kQueueFull)].value(), 1);
  box.expect_idle();
}

TEST(LoopChoices, OneThatFailsTakesTheOthersWithIt) {
  for (int at = 1; at < 8; ++at) {
    Box box{BoxOptions()};
    int batches = 0;
    box.backends[0].set_faults([&](const Batch& b) {
      Fault f;
      if (++batches == at) f.nan_works = {static_cast<int>(b.works.size()) - 1};
      return f;
    });
    const auto all = box.submit(sampled(box, kLongPrompt, 12), 3);
    box.pump();
    for (const auto& r : all) {
      EXPECT_EQ(r->ends, 1);
      EXPECT_EQ(r->end.status.code(), absl::StatusCode::kInternal) << at;
    }
    EXPECT_EQ(
        box.metrics.series.front().failed[static_cast<size_t>(absl::StatusCode::kInternal)].value(),
        1);
    box.expect_idle();
  }
}

TEST(LoopChoices, AreChargedToTheClientAndShareItsPrompt) {
  // Two clients, one slot each time: "a" asks for one choice of 9 tokens, "b" for three of 3.
  BoxOptions o;
  o.limits.max_running = 3;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> a, b;
  for (int i = 0; i < 20; ++i) {
    SequenceSpec s = box.spec({1, 2}, 9);
    s.client = "a";
    a.push_back(box.submit(std::move(s)));
    SequenceSpec t = box.spec({1, 2}, 3);
    t.client = "b";
    for (const auto& r : box.submit(t, 3)) b.push_back(r);
  }
  const auto ended = [](const auto& all) {
    return std::count_if(all.begin(), all.end(), [](const auto& r) { return r->ends; });
  };
  ASSERT_TRUE(box.pump_until([&] { return ended(a) == 10; }));
  EXPECT_NEAR(static_cast<double>(ended(b)) / 3, 10, 3);
}

}  // namespace
}  // namespace tandem::test
