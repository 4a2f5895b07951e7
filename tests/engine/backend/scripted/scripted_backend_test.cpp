#include "engine/backend/scripted/scripted_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/fake/fake_backend.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/bild.h"
#include "engine/decode/bita.h"
#include "engine/decode/ppd.h"
#include "engine/decode/speculative.h"
#include "engine/sched/loop.h"

namespace tandem {
namespace {

constexpr int kVocab = 60;
constexpr uint64_t kSeed = 11;  // of the requests

class Heard final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override {
    for (const Emitted& e : more) tokens.push_back(e.token);
  }
  void on_end(const SequenceEnd& e) override { end = e; }

  std::vector<Token> tokens;
  SequenceEnd end;
};

// The loop on a scripted device around a fake one, which checks memory accesses.
class ScriptedBackendTest : public testing::Test {
 protected:
  ScriptedBackendTest()
      : fake(&memory, &values, &clock, &timer),
        scripted(&fake, &values),
        loop({.log_frees = true}, &clock, {&scripted}, add_models(), &metrics) {}

  std::vector<LoopModel> add_models() {
    for (const int64_t m : {0, 1}) {
      FakeModelConfig config;
      config.vocab_size = kVocab;
      config.seed = static_cast<uint64_t>(m) + 1;
      config.pass_seconds = 0.001;
      fake.add_model(ModelId(m), "fake", config, {4, 256, 256});
    }
    scripted.add_large(ModelId(0));
    return {{ModelId(0), DeviceId(0)}, {ModelId(1), DeviceId(0)}};
  }

  // early_exit: the small model is the lower half of the large one.
  std::shared_ptr<Heard> run(std::function<Task<void>(Gen)> method, int tokens = 200,
                             bool early_exit = false, float temperature = 0) {
    auto heard = std::make_shared<Heard>();
    SequenceSpec spec;
    spec.id = ++last;
    spec.prompt = {5, 4, 3, 2, 1};
    spec.method = std::move(method);
    spec.extra_rows = 64;
    CastRole large{Role::kLarge, ModelId(0)};
    large.mask_adapter = AdapterId(0);
    spec.cast = make_cast({large, {Role::kSmall, ModelId(early_exit ? 0 : 1), early_exit ? 2 : 0}});
    spec.stops.max_new_tokens = tokens;
    spec.warp.seed = kSeed;
    spec.warp.temperature = temperature;
    spec.listener = heard;
    loop.submit(std::move(spec));
    while (loop.step() || timer.fire_next()) {
    }
    return heard;
  }
  void set_script(double agreement, double foresight = 0) {
    script = {.seed = 2, .vocab_size = kVocab, .agreement = agreement, .foresight = foresight};
    scripted.set_script(script);
  }
  // The token of the answer at `i`; the prompt has five.
  Token large(int i) const { return ScriptedText(script, kSeed, 0).large(5 + i); }
  std::vector<Token> larges(int n) const {
    std::vector<Token> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(large(i));
    return tokens;
  }

  // Speculative decoding on paper: accept lengths, [i]: verifications that kept i drafts.
  std::vector<int64_t> accept_lengths(int tokens, int gamma) const {
    const ScriptedText text(script, kSeed, 0);
    std::vector<int64_t> lengths;
    for (int have = 1; have < tokens;) {
      const int drafts = std::min(gamma, tokens - have - 1);
      if (drafts == 0) break;  // the last token is the target's own: nothing is verified
      int kept = 0;
      while (kept < drafts && text.agree(5 + have + kept)) ++kept;
      lengths.resize(std::max(lengths.size(), static_cast<size_t>(kept) + 1));
      ++lengths[static_cast<size_t>(kept)];
      have += kept + 1;
    }
    return lengths;
  }

  static auto speculative_of(SpeculativeParams a) {
    return [a](Gen g) { return speculative(g, a); };
  }
  static auto bild_of(BildParams a) {
    return [a](Gen g) { return bild(g, a); };
  }

  FakeMemory memory;
  ValueStore values;
  VirtualClock clock;
  VirtualTimer timer{&clock};
  FakeBackend fake;
  ScriptedBackend scripted;
  Metrics metrics;
  Loop loop;
  Script script;
  RequestId last = 0;
};

TEST_F(ScriptedBackendTest, AutoregressiveTextIsTheScripts) {
  set_script(0.5);
  const auto heard = run(autoregressive);
  ASSERT_TRUE(heard->end.status.ok()) << heard->end.status;
  EXPECT_EQ(heard->tokens, larges(200));
  EXPECT_EQ(heard->end.stats.large_passes, 200);
}

TEST_F(ScriptedBackendTest, SpeculativeTextIsTheSameAndDraftsAreKeptAsTheScriptSays) {
  for (const double agreement : {0.0, 0.5, 0.9, 1.0}) {
    set_script(agreement);
    for (const int gamma : {1, 4, 9}) {
      const auto heard = run(speculative_of({.draft_tokens = gamma}));
      ASSERT_TRUE(heard->end.status.ok()) << heard->end.status;
      EXPECT_EQ(heard->tokens, larges(200));
      EXPECT_EQ(heard->end.stats.accept_lengths, accept_lengths(200, gamma))
          << agreement << ", " << gamma;
    }
  }
}

TEST_F(ScriptedBackendTest, DraftsThatTheHostSeesAreTheSame) {
  set_script(0.8);
  // Drafts are not chained on the device; each is awaited.
  const auto heard = run(speculative_of({.draft_tokens = 4, .min_draft_probability = 0.01F}));
  EXPECT_EQ(heard->tokens, larges(200));
  EXPECT_EQ(heard->end.stats.accept_lengths, accept_lengths(200, 4));
}

TEST_F(ScriptedBackendTest, UnsureDraftsAreNotMade) {
  set_script(0.7, 1);
  const auto heard = run(speculative_of({.draft_tokens = 4, .min_draft_probability = 0.5F}));
  EXPECT_EQ(heard->tokens, larges(200));
  int64_t kept = 0;
  const std::vector<int64_t>& lengths = heard->end.stats.accept_lengths;
  for (size_t i = 0; i < lengths.size(); ++i) kept += static_cast<int64_t>(i) * lengths[i];
  EXPECT_EQ(kept, heard->end.stats.draft_tokens);
}

TEST_F(ScriptedBackendTest, BildRollsBackWhatItDoesNotPredict) {
  const auto exact = bild_of({.fallback_threshold = 0.6F, .rollback_threshold = 0.69F});
  set_script(0.8, 0);
  const auto blind = run(exact);
  EXPECT_EQ(blind->tokens, larges(200));
  EXPECT_EQ(blind->end.stats.own[BildFigures::kFallbacks], 0);
  EXPECT_GT(blind->end.stats.own[BildFigures::kRollbacks], 20);
  set_script(0.8, 1);
  const auto predicted = run(exact);
  EXPECT_EQ(predicted->tokens, larges(200));
  EXPECT_GT(predicted->end.stats.own[BildFigures::kFallbacks], 20);
  EXPECT_EQ(predicted->end.stats.own[BildFigures::kRollbacks], 0);
}

TEST_F(ScriptedBackendTest, WithoutRollbackTheTextIsSmalls) {
  set_script(0.5);
  const auto heard = run(bild_of({.fallback_threshold = 0,
                                  .rollback_threshold = std::numeric_limits<float>::infinity(),
                                  .max_small_run = 0,
                                  .verify_eos = false}));
  const ScriptedText text(script, kSeed, 0);
  ASSERT_EQ(heard->tokens.size(), 200U);
  EXPECT_EQ(heard->tokens[0], large(0));
  for (int i = 1; i < 200; ++i) EXPECT_EQ(heard->tokens[static_cast<size_t>(i)], text.small(5 + i));
}

TEST_F(ScriptedBackendTest, LowerLayersAnswerAsSmall) {
  set_script(0.6);
  const auto heard =
      run(bild_of({.fallback_threshold = 0, .rollback_threshold = 0.69F}), 200, true);
  ASSERT_TRUE(heard->end.status.ok()) << heard->end.status;
  EXPECT_EQ(heard->tokens, larges(200));
  EXPECT_GT(heard->end.stats.own[BildFigures::kRollbacks], 20);
  EXPECT_GT(heard->end.stats.small_passes, 200);
}

TEST_F(ScriptedBackendTest, MasksPredictAsOftenAsTheScriptSays) {
  set_script(0);
  const auto tokens_per_pass = [&](BitaTreeKind kind) {
    const BitaParams a{3, 3, kind, Pace::kFixed};
    const auto heard = run([a](Gen g) { return bita(g, a); }, 800);
    EXPECT_TRUE(heard->end.status.ok()) << heard->end.status;
    EXPECT_EQ(heard->tokens, larges(800));
    return 800.0 / static_cast<double>(heard->end.stats.large_passes);
  };
  EXPECT_DOUBLE_EQ(tokens_per_pass(BitaTreeKind::kEfficient), 1) << "no mask is ever right";
  script.masks = {{0.6, 0.2, 0.1}, {0.5, 0.2}, {0.5}};
  scripted.set_script(script);
  EXPECT_NEAR(tokens_per_pass(BitaTreeKind::kChain), 1 + 0.6 + 0.3 + 0.15, 0.1);
  EXPECT_NEAR(tokens_per_pass(BitaTreeKind::kEfficient), 1 + 0.9 + 0.6 * 0.7 + 0.6 * 0.5 * 0.5,
              0.12);
}

// The large model and a worker, each on its own scripted device.
TEST(ScriptedDevices, EarlyLayersProposeAsOftenAsTheScriptSays) {
  FakeMemory memory;
  ValueStore values;
  VirtualClock clock;
  VirtualTimer timer{&clock};
  FakeBackend fakes[] = {{&memory, &values, &clock, &timer}, {&memory, &values, &clock, &timer}};
  ScriptedBackend main(&fakes[0], &values), beside(&fakes[1], &values);
  FakeModelConfig config;
  config.vocab_size = kVocab;
  config.layer_seconds = 0.001;
  fakes[0].add_model(ModelId(0), "main", config, {4, 256, 256});
  config.layers /= 2;
  PoolSize pool{4, 256, 256};
  pool.retains_top_hidden = true;
  fakes[1].add_model(ModelId(1), "worker", config, pool);
  main.add_large(ModelId(0));
  const Script script{.vocab_size = kVocab, .agreement = 0, .early = {0.5, 0.2, 0.1}};
  main.set_script(script);
  beside.set_script(script);
  Metrics metrics;
  Loop loop({.log_frees = true}, &clock, {&main, &beside},
            {{ModelId(0), DeviceId(0)}, {ModelId(1), DeviceId(1)}}, &metrics);
  const ScriptedText text(script, kSeed, 0);
  for (const int k : {1, 3}) {
    auto heard = std::make_shared<Heard>();
    SequenceSpec spec;
    spec.id = static_cast<RequestId>(k);
    spec.prompt = {5, 4, 3, 2, 1};
    spec.method = [k](Gen g) { return ppd(g, {.candidates = k, .workers = 1}); };
    spec.extra_rows = k;
    spec.cast = make_cast({{Role::kLarge, ModelId(0), 0},
                           {Role::kSmall, ModelId(0), config.layers, 2},
                           {Role::kWorker, ModelId(1), 0}});
    spec.stops.max_new_tokens = 100;
    spec.warp.seed = kSeed;
    spec.listener = heard;
    loop.submit(std::move(spec));
    while (loop.step() || timer.fire_next()) {
    }
    ASSERT_TRUE(heard->end.status.ok()) << heard->end.status;
    int64_t matches = 0;
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(heard->tokens[static_cast<size_t>(i)], text.large(5 + i));
      const std::vector<Token> best = text.early(5 + i, k);
      if (i < 99) matches += std::ranges::count(best, text.large(5 + i));
    }
    const auto& own = heard->end.stats.own;
    EXPECT_EQ(own[PpdFigures::kRounds], 99);
    EXPECT_EQ(own[PpdFigures::kMatches], matches);
    EXPECT_EQ(own[PpdFigures::kAdopted], matches);
  }
}

TEST_F(ScriptedBackendTest, PassesCostWhatTheyCost) {
  set_script(1);
  const TimePoint start = clock.now();
  run(autoregressive, 50);
  EXPECT_EQ(clock.now() - start, 50 * std::chrono::milliseconds(1));
}

TEST_F(ScriptedBackendTest, WhatItCannotAnswerIsRefused) {
  set_script(0.5);
  const auto heard = run(autoregressive, 20, false, 1.0F);
  EXPECT_EQ(heard->end.status.code(), absl::StatusCode::kUnimplemented) << heard->end.status;
  EXPECT_TRUE(heard->tokens.empty());
}

}  // namespace
}  // namespace tandem
