// A large and a small model in one deployment, and concurrent requests of different methods: they
// share batches and get the same answers as alone. On fake models and the demo's, on one device and
// two.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "engine/decode/bild.h"
#include "tests/engine/host/kit.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;
using testing::run;

struct Pair {
  const char* name;
  bool real;      // the demo's models, else fake ones
  uint64_t seed;  // of the fake small model; 1: the large one's, so that they always agree
  const char* small_device;
};

EngineConfig config_of(const Pair& pair) {
  EngineConfig config;
  for (const char* device : {"cpu:0", pair.small_device}) {
    if (!config.devices.empty() && config.devices[0].name() == device) continue;
    DeviceConfig& d = config.devices.emplace_back();
    d.index = device[4] - '0';
    d.threads = 1;
    d.memory_bytes = 64 << 20;
  }
  for (const bool large : {true, false}) {
    ModelConfig& model = config.models.emplace_back();
    model.name = large ? "large" : "small";
    model.device = large ? "cpu:0" : pair.small_device;
    if (pair.real) {
      model.path = std::string(TANDEM_SOURCE_DIR) + "/models/code-" + model.name;
    } else {
      model.fake = testing::fake_model(large ? 1 : pair.seed);
    }
  }
  DeploymentConfig& deployment = config.deployments.emplace_back();
  deployment.name = "pair";
  deployment.large = "large";
  deployment.small = "small";
  deployment.methods["bild"] = {{"early_exit_layer", 3}};
  return config;
}

class Pairs : public ::testing::TestWithParam<Pair> {
 protected:
  void SetUp() override {
#ifndef TANDEM_WITH_TORCH
    if (GetParam().real) GTEST_SKIP() << "built without LibTorch";
#endif
    engine_ = make_engine(config_of(GetParam()));
    ASSERT_NE(engine_, nullptr);
  }

  const Metrics& metrics() const { return engine_->metrics(); }
  void expect_pages_back() const {  // hangs if they leak: the loop's next step frees them
    for (const ModelSeries& m : metrics().models) {
      while (m.kv_pages_used.value() > 0) std::this_thread::yield();
    }
  }

  std::unique_ptr<Engine> engine_;
};

// Python, as the demo models know it.
const char* const kPrompts[] = {
    "def count_words(text):\n    counts = {}\n",
    "import socket\n\nclass Listener:\n    def __init__(self, port):\n",
    "    for name, value in sorted(headers.items()):\n",
    "x = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "try:\n    handle = open(path, 'rb')\n",
    "    def test_empty(self):\n        self.assertEqual(",
};

GenerateRequest plain(int prompt) {
  return testing::request_for(std::string(kPrompts[prompt % std::size(kPrompts)]), 32);
}

// The i-th of many requests with all methods and many parameters.
GenerateRequest mixed(int i) {
  GenerateRequest r = plain(i);
  r.stopping.max_new_tokens = 20 + i % 13;
  if (i % 4 == 3) {
    r.sampling.temperature = 0.8;
    r.sampling.top_p = 0.95;
    r.sampling.seed = static_cast<uint64_t>(i);
  }
  switch (i % 8) {
    case 0:
      r.method = kAutoregressive;
      break;
    case 1:
    case 6:
      r.method = "speculative";
      set_setting(&r.parameters, "draft_tokens", 1 + i % 7);
      break;
    case 2:
      r.method = "ngram";
      set_setting(&r.parameters, "pace", i % 16 == 2 ? "PACE_ADAPTIVE" : "PACE_FIXED");
      set_setting(&r.parameters, "max_ngram", 3);  // too short for drafts from earlier requests
      break;
    case 3:
      r.method = "speculative";
      set_setting(&r.parameters, "pace", "PACE_ADAPTIVE");
      set_setting(&r.parameters, "min_draft_probability", 0.05);
      if (i % 16 == 11) set_setting(&r.parameters, "acceptance", "ACCEPTANCE_RATIO");
      break;
    case 4:
      r.method = "bild";
      set_setting(&r.parameters, "fallback_threshold", 0.06 * (i % 3));
      set_setting(&r.parameters, "rollback_threshold", i % 5);
      break;
    case 5:
      r.method = "bild";
      set_setting(&r.parameters, "early_exit", true);
      set_setting(&r.parameters, "fallback_threshold", 0);
      set_setting(&r.parameters, "rollback_threshold", 3);
      set_setting(&r.parameters, "max_small_run", 1 + i % 5);
      break;
    default:
      r.method = "bild";
      set_setting(&r.parameters, "window", 4);
      set_setting(&r.parameters, "rollback_threshold", 1 + i % 3);
  }
  if (i % 8 == 0 && i % 16 == 8) set_setting(&r.beam, "width", 3);
  return r;
}
constexpr int kCrowd = 24;

void expect_same(const Recorder& a, const Recorder& b) {
  EXPECT_EQ(a.ids(), b.ids());
  EXPECT_EQ(a.text(), b.text());
  EXPECT_EQ(a.end().reason, b.end().reason);
  const MethodStats &s = a.end().stats, &t = b.end().stats;
  EXPECT_EQ(s.large_passes, t.large_passes);
  EXPECT_EQ(s.small_passes, t.small_passes);
  EXPECT_EQ(s.accept_lengths, t.accept_lengths);
  EXPECT_EQ(s.draft_tokens, t.draft_tokens);
  EXPECT_EQ(s.own[BildFigures::kFallbacks], t.own[BildFigures::kFallbacks]);
  EXPECT_EQ(s.own[BildFigures::kForcedCalls], t.own[BildFigures::kForcedCalls]);
  EXPECT_EQ(s.own[BildFigures::kRollbacks], t.own[BildFigures::kRollbacks]);
  EXPECT_EQ(s.own[BildFigures::kRolledBackTokens], t.own[BildFigures::kRolledBackTokens]);
  EXPECT_EQ(s.small_tokens, t.small_tokens);
  EXPECT_EQ(s.large_tokens, t.large_tokens);
}

TEST_P(Pairs, ExactMethodsAreExact) {
  std::vector<std::pair<std::string, GenerateRequest>> ways;
  const auto way = [&](const char* name, const char* method, auto set) {
    GenerateRequest r = plain(0);
    r.method = method;
    r.require_contract = Contract::kExact;
    set(r);
    ways.emplace_back(name, r);
  };
  way("auto", kAuto, [](auto&) {});
  way("speculative", "speculative", [](auto&) {});
  way("eight drafts", "speculative",
      [](auto& r) { set_setting(&r.parameters, "draft_tokens", 8); });
  way("adaptive", "speculative",
      [](auto& r) { set_setting(&r.parameters, "pace", "PACE_ADAPTIVE"); });
  way("sure drafts", "speculative",
      [](auto& r) { set_setting(&r.parameters, "min_draft_probability", 0.3); });
  way("n-grams", "ngram", [](auto&) {});
  way("bild", "bild", [](auto& r) { set_setting(&r.parameters, "rollback_threshold", 0.69); });
  way("bild, no fallback", "bild", [](auto& r) {
    set_setting(&r.parameters, "rollback_threshold", 0.69);
    set_setting(&r.parameters, "fallback_threshold", 0);
    set_setting(&r.parameters, "max_small_run", 0);
  });
  way("bild, early exit", "bild", [](auto& r) {
    set_setting(&r.parameters, "rollback_threshold", 0.5);
    set_setting(&r.parameters, "fallback_threshold", 0.05);
    set_setting(&r.parameters, "early_exit", true);
  });
  way("bild, always falls back", "bild",
      [](auto& r) { set_setting(&r.parameters, "fallback_threshold", 1.5); });
  for (size_t p = 0; p < std::size(kPrompts); ++p) {
    const auto alone = run(*engine_, plain(static_cast<int>(p)));
    ASSERT_TRUE(alone->wait().ok()) << alone->wait();
    for (auto& [name, request] : ways) {
      SCOPED_TRACE(name + " of " + kPrompts[p]);
      request.prompt = std::string(kPrompts[p]);
      const auto sink = run(*engine_, request);
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->start().contract, Contract::kExact);
      EXPECT_EQ(sink->ids(), alone->ids());
      EXPECT_EQ(sink->text(), alone->text());
    }
  }
}

// When sampled with a seed, the tokens are autoregressive decoding's, also with penalties.
TEST_P(Pairs, SampledExactMethodsAreExact) {
  std::vector<std::pair<std::string, GenerateRequest>> ways;
  const auto way = [&](const char* name, const char* method, auto set) {
    GenerateRequest r = plain(0);
    r.method = method;
    r.require_contract = Contract::kExact;
    set(r);
    ways.emplace_back(name, r);
  };
  way("eight drafts", "speculative",
      [](auto& r) { set_setting(&r.parameters, "draft_tokens", 8); });
  way("sure drafts, adaptive", "speculative", [](auto& r) {
    set_setting(&r.parameters, "min_draft_probability", 0.2);
    set_setting(&r.parameters, "pace", "PACE_ADAPTIVE");
  });
  way("n-grams", "ngram", [](auto&) {});
  way("bild, always falls back", "bild",
      [](auto& r) { set_setting(&r.parameters, "fallback_threshold", 1.5); });
  int64_t accepted = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const auto sampled = [&](GenerateRequest r) {
      r.prompt = std::string(kPrompts[seed % std::size(kPrompts)]);
      r.sampling.seed = seed;
      r.sampling.temperature = seed % 3 == 0 ? 1.2 : 0.7;
      if (seed % 2 == 0) r.sampling.top_p = 0.9;
      if (seed % 4 == 1) r.sampling.repetition_penalty = 1.1;
      if (seed % 4 == 2) r.sampling.frequency_penalty = 0.3;
      return r;
    };
    const auto alone = run(*engine_, sampled(plain(0)));
    ASSERT_TRUE(alone->wait().ok()) << alone->wait();
    for (const auto& [name, request] : ways) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed));
      const auto sink = run(*engine_, sampled(request));
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->start().contract, Contract::kExact);
      EXPECT_EQ(sink->ids(), alone->ids());
      EXPECT_EQ(sink->text(), alone->text());
      accepted += sink->end().stats.small_tokens;
    }
  }
  EXPECT_GT(accepted, 30) << "even of fakes that seldom agree";
}

TEST_P(Pairs, MixedRequestsAnswerAsAloneAndMetricsAreTheSumOfStatistics) {
  std::vector<std::shared_ptr<Recorder>> alone, together;
  for (int i = 0; i < kCrowd; ++i) {
    alone.push_back(run(*engine_, mixed(i)));
    ASSERT_TRUE(alone.back()->wait().ok()) << alone.back()->wait();
  }
  for (int i = 0; i < kCrowd; ++i) {
    together.push_back(std::make_shared<Recorder>());
    engine_->submit(mixed(i), together.back());
  }
  for (int i = 0; i < kCrowd; ++i) {
    SCOPED_TRACE(i);
    const auto k = static_cast<size_t>(i);
    ASSERT_TRUE(together[k]->wait().ok()) << together[k]->wait();
    expect_same(*together[k], *alone[k]);
  }
  expect_pages_back();

  std::map<std::string, MethodStats> sums;
  for (const auto& crowd : {alone, together}) {
    for (const auto& sink : crowd) {
      const MethodStats& s = sink->end().stats;
      MethodStats& sum = sums[sink->start().method];
      sum.accept_lengths.resize(std::max(sum.accept_lengths.size(), s.accept_lengths.size()));
      for (size_t i = 0; i < s.accept_lengths.size(); ++i) {
        sum.accept_lengths[i] += s.accept_lengths[i];
      }
      sum.draft_tokens += s.draft_tokens;
      sum.own[BildFigures::kFallbacks] += s.own[BildFigures::kFallbacks];
      sum.own[BildFigures::kRollbacks] += s.own[BildFigures::kRollbacks];
      sum.own[BildFigures::kRolledBackTokens] += s.own[BildFigures::kRolledBackTokens];
      int64_t kept = 0;
      for (const TokenInfo& t : sink->tokens()) {
        kept += t.provenance.proposed != Source::kLarge ? 1 : 0;
      }
      EXPECT_EQ(s.small_tokens, kept);
      EXPECT_EQ(s.small_tokens + s.large_tokens, static_cast<int64_t>(sink->tokens().size()));
    }
  }
  ASSERT_EQ(metrics().series.size(), 4U);
  for (const Series& series : metrics().series) {
    SCOPED_TRACE(series.method);
    const MethodStats& sum = sums[series.method];
    int64_t drafts = 0, accepted = 0;
    for (size_t i = 0; i < sum.accept_lengths.size(); ++i) {
      drafts += sum.accept_lengths[i];
      accepted += static_cast<int64_t>(i) * sum.accept_lengths[i];
    }
    EXPECT_EQ(series.drafts.value(), drafts);
    EXPECT_EQ(series.accept_length.total(), drafts);
    EXPECT_EQ(series.accepted_tokens.value(), accepted);
    EXPECT_EQ(series.accept_length.sum(), static_cast<double>(accepted));
    EXPECT_EQ(series.draft_tokens.value(), sum.draft_tokens);
    int64_t by_position = 0;
    for (const Counter& at : series.accepted_at) by_position += at.value();
    EXPECT_EQ(by_position, accepted);
    EXPECT_EQ(series.own[BildFigures::kFallbacks].value(), sum.own[BildFigures::kFallbacks]);
    EXPECT_EQ(series.own[BildFigures::kRollbacks].value(), sum.own[BildFigures::kRollbacks]);
    EXPECT_EQ(series.own[BildFigures::kRolledBackTokens].value(),
              sum.own[BildFigures::kRolledBackTokens]);
    EXPECT_EQ(drafts > 0, series.method != "autoregressive");
  }
}

TEST_P(Pairs, PassesAreCountedByTheirRole) {
  std::map<std::pair<size_t, Role>, int64_t> before, expected;
  const auto count = [&](size_t model, Role role) {
    return metrics().models[model].passes[static_cast<size_t>(role)].value();
  };
  const std::pair<size_t, Role> all[] = {
      {0, Role::kLarge}, {0, Role::kSmall}, {1, Role::kLarge}, {1, Role::kSmall}};
  for (const auto& [model, role] : all) before[{model, role}] = count(model, role);
  for (const int i : {0, 1, 4, 5}) {
    const auto sink = run(*engine_, mixed(i));
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    expected[{0, Role::kLarge}] += sink->end().stats.large_passes;
    expected[{i == 5 ? 0U : 1U, Role::kSmall}] += sink->end().stats.small_passes;
  }
  EXPECT_GT((expected[{0, Role::kSmall}]), 0);  // early exit
  EXPECT_GT((expected[{1, Role::kSmall}]), 0);
  for (const auto& [model, role] : all) {
    EXPECT_EQ(count(model, role) - before[std::pair(model, role)], expected[std::pair(model, role)])
        << model << " " << role_name(role);
  }
}

TEST_P(Pairs, CancellingAThirdFreesPagesOfBothModelsAndChangesNoOther) {
  std::vector<std::shared_ptr<Recorder>> alone, together;
  std::vector<RequestId> ids;
  // Requests to be cancelled run long enough, even on a busy machine.
  const auto request = [&](int i) {
    GenerateRequest r = mixed(i);
    if (i % 3 != 0) return r;
    r.stopping.max_new_tokens = GetParam().real ? 96 : 400;
    r.stopping.ignore_eos = true;
    return r;
  };
  for (int i = 0; i < kCrowd; ++i) alone.push_back(run(*engine_, request(i)));
  for (int i = 0; i < kCrowd; ++i) {
    together.push_back(std::make_shared<Recorder>());
    ids.push_back(engine_->submit(request(i), together.back()));
  }
  int cancelled = 0;
  for (int i = 0; i < kCrowd; i += 3) {
    const auto k = static_cast<size_t>(i);
    if (i % 2 == 0) together[k]->wait_for_tokens(1 + k / 4);
    engine_->cancel(ids[k]);
  }
  for (int i = 0; i < kCrowd; ++i) {
    SCOPED_TRACE(i);
    const auto k = static_cast<size_t>(i);
    const absl::Status status = together[k]->wait();
    if (i % 3 != 0) {
      EXPECT_TRUE(status.ok()) << status;
      expect_same(*together[k], *alone[k]);
      continue;
    }
    ASSERT_TRUE(alone[k]->wait().ok()) << alone[k]->wait();
    cancelled += status.code() == absl::StatusCode::kCancelled ? 1 : 0;
    const std::vector<Token> got = together[k]->ids(), whole = alone[k]->ids();
    ASSERT_LE(got.size(), whole.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), whole.begin()));
  }
  EXPECT_GT(cancelled, 0);
  expect_pages_back();
}

// Drafts end at the context's end: no method requests rows beyond it.
TEST_P(Pairs, TheWholeContextCanBeFilled) {
  const int64_t context = engine_->deployment("pair")->context_length;
  const int64_t prompt = context - 12;
  for (const int i : {1, 2, 4, 5}) {
    SCOPED_TRACE(i);
    GenerateRequest r = mixed(i);
    r.prompt = std::vector<Token>(static_cast<size_t>(prompt), 65);
    r.stopping.max_new_tokens = 12;
    const auto sink = run(*engine_, r);
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    EXPECT_EQ(sink->ids().size(), 12U);
  }
  expect_pages_back();
}

INSTANTIATE_TEST_SUITE_P(, Pairs,
                         ::testing::Values(Pair{"FakeThatDisagree", false, 2, "cpu:0"},
                                           Pair{"FakeThatAgree", false, 1, "cpu:0"},
                                           Pair{"FakeOnTwoDevices", false, 2, "cpu:1"},
                                           Pair{"FakeThatAgreeOnTwoDevices", false, 1, "cpu:1"},
                                           Pair{"Demo", true, 0, "cpu:0"},
                                           Pair{"DemoOnTwoDevices", true, 0, "cpu:1"}),
                         [](const auto& pair) { return pair.param.name; });

}  // namespace
}  // namespace tandem
