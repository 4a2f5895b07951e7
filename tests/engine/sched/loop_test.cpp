// Requests without faults.
#include "engine/sched/loop.h"

#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

BoxOptions options_with(int step_rows, int chunk_rows) {
  BoxOptions o;
  o.limits.step_rows = step_rows;
  o.limits.prefill_chunk_rows = chunk_rows;
  return o;
}

TEST(Loop, GreedyIsTheModelsOwn) {
  Box box{BoxOptions()};
  std::mt19937_64 rng(1);
  for (int i = 0; i < 100; ++i) {
    const auto prompt = random_prompt(rng, 1, 30);
    const auto r = box.submit(box.spec(prompt, 12));
    box.pump();
    EXPECT_TRUE(r->ok());
    EXPECT_EQ(r->tokens, box.greedy(prompt, 12));
    EXPECT_EQ(r->end.reason, FinishReason::kMaxTokens);
    EXPECT_EQ(r->end.prompt_tokens, static_cast<int64_t>(prompt.size()));
    EXPECT_EQ(r->end.stats.large_passes, 12);
    box.expect_idle();
  }
}

TEST(Loop, ConcurrencyAndChunksChangeNothing) {
  for (const int chunk : {1, 3, 16, 256}) {
    Box box{options_with(chunk * 3, chunk)};
    std::mt19937_64 rng(2);
    std::vector<std::pair<std::vector<Token>, std::shared_ptr<Recorder>>> all;
    for (int i = 0; i < 20; ++i) {
      auto prompt = random_prompt(rng, 1, 40);
      all.emplace_back(prompt, box.submit(box.spec(prompt, 6)));
    }
    box.pump();
    for (const auto& [prompt, r] : all) EXPECT_EQ(r->tokens, box.greedy(prompt, 6)) << chunk;
    box.expect_idle();
  }
}

TEST(Loop, ASlidingWindowIsTheModels) {
  BoxOptions o = options_with(8, 4);
  o.models[0].window = 5;
  Box box{o};
  std::mt19937_64 rng(3);
  const auto prompt = random_prompt(rng, 20, 20);
  const auto r = box.submit(box.spec(prompt, 10));
  box.pump();
  EXPECT_EQ(r->tokens, box.greedy(prompt, 10));
  EXPECT_NE(r->tokens, fake::greedy(box.config(), prompt, 10, 0));
}

std::vector<std::vector<Token>> sampled(std::optional<uint64_t> shuffle, int step_rows, int chunk,
                                        int64_t pages) {
  BoxOptions o = options_with(step_rows, chunk);
  o.shuffle = shuffle;
  o.models[0].pool.pages = pages;
  Box box{o};
  std::mt19937_64 rng(4);
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 12; ++i) {
    SequenceSpec s = box.spec(random_prompt(rng, 1, 20), 8);
    s.warp.temperature = 0.9F;
    s.warp.top_p = 0.95F;
    s.warp.seed = static_cast<uint64_t>(i % 4);
    s.warp.choice = static_cast<uint32_t>(i % 2);
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  box.expect_idle();
  std::vector<std::vector<Token>> tokens;
  for (const auto& r : all) tokens.push_back(r->tokens);
  return tokens;
}

TEST(Loop, SampledTokensDependOnTheSeedAlone) {
  const auto expected = sampled(std::nullopt, 512, 256, 256);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(sampled(seed, 5 + static_cast<int>(seed), 1 + static_cast<int>(seed), 12), expected);
  }
}

TEST(Loop, EndsWhereTheRulesSay) {
  Box box{BoxOptions()};
  std::mt19937_64 rng(5);
  const auto prompt = random_prompt(rng, 5, 5);
  const auto known = box.greedy(prompt, 10);
  // It ends at the first occurrence of the token at index 4.
  const auto first = std::find(known.begin(), known.end(), known[4]);
  const std::vector<Token> before(known.begin(), first);
  SequenceSpec eos = box.spec(prompt, 10);
  eos.stops.eos = {known[4]};
  SequenceSpec stop = box.spec(prompt, 10);
  stop.stops.stop_tokens = {known[4]};
  const auto a = box.submit(std::move(eos)), b = box.submit(std::move(stop));
  const auto c = box.submit(box.spec(prompt, 1));
  SequenceSpec included = box.spec(prompt, 10);
  included.stops.eos = {known[4]};
  included.stops.include_end = true;
  const auto d = box.submit(std::move(included));
  box.pump();
  std::vector<Token> with = before;
  with.push_back(known[4]);
  EXPECT_EQ(d->tokens, with);
  EXPECT_EQ(d->end.reason, FinishReason::kEos);
  EXPECT_TRUE(d->emitted.back().end);
  EXPECT_EQ(std::count_if(d->emitted.begin(), d->emitted.end(), [](auto& e) { return e.end; }), 1);
  EXPECT_EQ(a->tokens, before);
  EXPECT_EQ(a->end.reason, FinishReason::kEos);
  EXPECT_EQ(b->tokens, before);
  EXPECT_EQ(b->end.reason, FinishReason::kStopToken);
  EXPECT_EQ(c->tokens, std::vector<Token>(known.begin(), known.begin() + 1));
  EXPECT_EQ(c->end.reason, FinishReason::kMaxTokens);
}

class StopAfter final : public TextStops {
 public:
  explicit StopAfter(int n) : left_(n) {}
  std::unique_ptr<TextStops> clone() const override { return std::make_unique<StopAfter>(*this); }
  int push(Token) override { return --left_ == 0 ? 7 : -1; }
  bool would_stop(std::span<const Token> t) const override {
    return static_cast<int>(t.size()) >= left_;
  }

 private:
  int left_;
};

TEST(Loop, AStopStringEndsAfterTheTokenThatCompletesIt) {
  Box box{BoxOptions()};
  SequenceSpec s = box.spec({1, 2, 3}, 10);
  s.stops.text = std::make_unique<StopAfter>(4);
  const auto r = box.submit(std::move(s));
  box.pump();
  EXPECT_EQ(r->tokens, box.greedy({1, 2, 3}, 4));
  EXPECT_EQ(r->end.reason, FinishReason::kStopSequence);
  EXPECT_EQ(r->end.stop_index, 7);
}

TEST(Loop, LogprobsAreTheModels) {
  Box box{BoxOptions()};
  SequenceSpec s = box.spec({5, 6}, 3);
  s.logprobs = true;
  s.top_logprobs = 4;
  const auto r = box.submit(std::move(s));
  box.pump();
  std::vector<Token> seq = {5, 6};
  ASSERT_EQ(r->emitted.size(), 3U);
  for (const Emitted& e : r->emitted) {
    const auto logits = fake::logits_after(box.config(), seq, box.config().layers);
    double total = 0;
    for (const float l : logits) total += std::exp(double{l});
    const double expected = logits[static_cast<size_t>(e.token)] - std::log(total);
    EXPECT_NEAR(e.logprob, expected, 1e-4);
    ASSERT_EQ(e.top.size(), 4U);
    EXPECT_EQ(e.top[0].token, e.token);
    EXPECT_NEAR(e.top[0].logprob, expected, 1e-4);
    EXPECT_GE(e.top[0].logprob, e.top[1].logprob);
    seq.push_back(e.token);
  }
}

TEST(Loop, SmallPoolsPreemptAndChangeNothing) {
  BoxOptions o;
  o.models[0].pool.pages = 9;  // each needs up to 8: rows 1..32 of 4
  for (uint64_t seed = 0; seed < 20; ++seed) {
    o.shuffle = seed;
    Box box{o};
    std::mt19937_64 rng(seed);
    std::vector<std::pair<std::vector<Token>, std::shared_ptr<Recorder>>> all;
    for (int i = 0; i < 8; ++i) {
      auto prompt = random_prompt(rng, 1, 16);
      SequenceSpec s = box.spec(prompt, 16);
      s.priority = static_cast<int>(rng() % 3);
      all.emplace_back(prompt, box.submit(std::move(s)));
    }
    box.pump();
    int64_t preemptions = 0;
    for (const auto& [prompt, r] : all) {
      EXPECT_TRUE(r->ok()) << r->end.status;
      EXPECT_EQ(r->tokens, box.greedy(prompt, 16));
      preemptions += r->end.stats.preemptions;
    }
    EXPECT_GT(preemptions, 0);
    EXPECT_EQ(preemptions, box.metrics.preemptions.value());
    box.expect_idle();
  }
}

TEST(Loop, DevicesCycleIndependently) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].device = 1;
  o.models[1].config.seed = 2;
  o.models[0].config.pass_seconds = 1.0;  // a slow device and a quick one
  Box box{o};
  SequenceSpec quick = box.spec({1, 2}, 20);
  quick.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  const auto slow = box.submit(box.spec({1, 2}, 3));
  const auto fast = box.submit(std::move(quick));
  ASSERT_TRUE(box.pump_until([&] { return fast->ends == 1; }));
  EXPECT_LT(slow->tokens.size(), 2U);
  EXPECT_EQ(fast->tokens, box.greedy({1, 2}, 20, 1));
  box.pump();
  EXPECT_EQ(slow->tokens, box.greedy({1, 2}, 3));
}

// Contended pages of one model do not block requests of another.
TEST(Loop, PoolsCycleIndependently) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].pool.pages = 8;
  o.models[0].config.pass_seconds = 1.0;
  o.models[1].device = 1;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> contended;
  for (const Token t : {1, 2, 3}) contended.push_back(box.submit(box.spec({t, 2, 3}, 28)));
  ASSERT_TRUE(box.pump_until([&] { return box.metrics.preemptions.value() > 0; }));
  SequenceSpec other = box.spec({1, 2}, 20);
  other.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  const TimePoint start = box.clock.now();
  const auto fast = box.submit(std::move(other));
  ASSERT_TRUE(box.pump_until([&] { return fast->ends == 1; }));
  EXPECT_LT(seconds(box.clock.now() - start), 2.0);
  box.pump();
  for (Token t = 1; const auto& r : contended) {
    EXPECT_EQ(r->tokens, box.greedy({t++, 2, 3}, 28));
  }
}

TEST(Loop, MetricsEqualTheEvents) {
  BoxOptions o;
  o.models[0].pool.pages = 12;
  o.limits.max_waiting = 30;
  Box box{o};
  std::mt19937_64 rng(6);
  std::vector<std::shared_ptr<Recorder>> all;
  int64_t batches = 0, works = 0;
  box.backends[0].set_faults([&](const Batch& b) {
    ++batches;
    works += static_cast<int64_t>(b.works.size());
    return Fault();
  });
  for (int i = 0; i < 40; ++i) {
    SequenceSpec s = box.spec(random_prompt(rng, 1, 12), 1 + static_cast<int>(rng() % 10));
    s.stops.eos = {static_cast<Token>(rng() % 40)};
    if (i % 5 == 0) s.time_limit = box.clock.now() + std::chrono::milliseconds(20);
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  const Series& m = box.metrics.series.front();
  int64_t prompt = 0, tokens = 0, admitted = 0, first = 0, passes = 0;
  std::array<int64_t, kFinishReasons> finished{};
  int64_t failed = 0, calls = 0;
  for (const auto& r : all) {
    ASSERT_EQ(r->ends, 1);
    tokens += static_cast<int64_t>(r->tokens.size());
    calls += r->tokens.empty() ? 0 : static_cast<int64_t>(r->tokens.size()) - 1;
    first += r->tokens.empty() ? 0 : 1;
    passes += r->end.stats.large_passes;
    if (r->admitted) prompt += r->end.prompt_tokens, ++admitted;
    if (r->end.status.ok()) ++finished[static_cast<size_t>(r->end.reason)];
    failed += r->end.status.ok() ? 0 : 1;
  }
  EXPECT_GT(failed, 0);
  for (int i = 0; i < kFinishReasons; ++i) {
    EXPECT_EQ(m.finished[static_cast<size_t>(i)].value(), finished[static_cast<size_t>(i)]) << i;
  }
  EXPECT_EQ(m.failed[static_cast<size_t>(absl::StatusCode::kResourceExhausted)].value(), failed);
  const auto full = static_cast<size_t>(RejectReason::kQueueFull);
  EXPECT_EQ(box.metrics.rejected[full].value(), failed);
  EXPECT_EQ(m.prompt_tokens.value(), prompt);
  EXPECT_EQ(m.generated_tokens.value(), tokens);
  EXPECT_EQ(m.queue_time.total(), admitted);
  EXPECT_EQ(m.time_to_first_token.total(), first);
  EXPECT_EQ(m.inter_token_latency.total(), calls);
  EXPECT_EQ(m.requests_running.value(), 0);
  EXPECT_EQ(m.e2e_latency.total(), 40 - failed);
  EXPECT_EQ(box.metrics.requests_waiting.value(), 0);
  EXPECT_EQ(box.metrics.models[0].batches.value(), batches);
  EXPECT_EQ(box.metrics.models[0].passes[0].value(), passes);
  EXPECT_EQ(box.metrics.models[0].kv_pages_used.value(), 0);
  EXPECT_GE(works, passes);
}

}  // namespace
}  // namespace tandem::test
