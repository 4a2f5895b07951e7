// Models with an encoder, which runs the prompt. Every method works as on decoders. Greedy tokens
// are Transformers' (beams: families_test.cpp).
#ifdef TANDEM_WITH_TORCH
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/decode/bild.h"
#include "engine/host/config/config.h"
#include "tests/engine/host/kit.h"
#include "tests/engine/host/served_golden.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::run;
using testing::Served;

EngineConfig alone(const Served& served) {
  return testing::real_engine_config("t5", served.path(), DType::kFloat32);
}

class ServedModels : public ::testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  ServedModels() : served(GetParam().first, GetParam().second) {}
  const Served served;
};

TEST_P(ServedModels, GreedyTokensAreTransformersAloneAndInBatches) {
  const auto engine = make_engine(alone(served));
  ASSERT_NE(engine, nullptr);
  for (const bool together : {false, true}) {
    std::vector<std::shared_ptr<Recorder>> sinks;
    for (int i = 0; i < served.golden.prompts(); ++i) {
      sinks.push_back(std::make_shared<Recorder>());
      engine->submit(served.request(i, "t5"), sinks.back());
      if (!together) (void)sinks.back()->wait();
    }
    for (int i = 0; i < served.golden.prompts(); ++i) {
      Recorder& sink = *sinks[static_cast<size_t>(i)];
      ASSERT_TRUE(sink.wait().ok()) << sink.wait();
      EXPECT_EQ(sink.ids(), served.golden.greedy(i)) << "prompt " << i;
      const auto source = static_cast<int64_t>(served.golden.prompt(i).size());
      EXPECT_EQ(sink.start().prompt_tokens, source);
      EXPECT_EQ(sink.end().usage.prompt_tokens, source);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ServedModels,
                         ::testing::Values(std::pair("t5", 96), std::pair("t5_v1_1", 112),
                                           std::pair("mt5", 128)),
                         [](const auto& info) { return std::string(info.param.first); });

// The whole model, with a one-layer decoder of it as the small model, on one device or two.
EngineConfig pair_config(const Served& served, int devices) {
  EngineConfig config;
  for (int d = 0; d < devices; ++d) {
    DeviceConfig& device = config.devices.emplace_back();
    device.index = d;
    device.threads = 1;
    device.memory_bytes = 32 << 20;
  }
  for (const bool large : {true, false}) {
    ModelConfig& model = config.models.emplace_back();
    model.name = large ? "large" : "small";
    model.device = large || devices == 1 ? "cpu:0" : "cpu:1";
    model.path = served.path();
    model.layers = large ? 0 : 1;
  }
  DeploymentConfig& deployment = config.deployments.emplace_back();
  deployment.name = "pair";
  deployment.large = "large";
  deployment.small = "small";
  deployment.methods["bild"] = {{"early_exit_layer", 1}};
  return config;
}

class EncoderDecoderPairs : public ::testing::TestWithParam<int> {
 protected:
  EncoderDecoderPairs() : served("t5_v1_1", 112), folders(served.path()) {}

  EngineConfig config() const {
    EngineConfig c = pair_config(served, GetParam());
    c.models[0].extras = {testing::write_masks(folders)};
    c.deployments[0].methods["bita"] = {{"adapter", std::string("masks")}};
    return c;
  }

  // EXACT methods.
  std::vector<std::pair<const char*, GenerateRequest>> exact_ways(int prompt) const {
    std::vector<std::pair<const char*, GenerateRequest>> ways;
    const auto way = [&](const char* name, const char* method, const Settings& settings) {
      GenerateRequest r = served.request(prompt, "pair");
      r.method = method;
      r.parameters = settings;
      r.require_contract = Contract::kExact;
      ways.emplace_back(name, r);
    };
    way("speculative", "speculative", {});
    way("eight drafts", "speculative", {{"draft_tokens", int64_t{8}}});
    way("n-grams", "ngram", {});
    way("bild", "bild", {{"rollback_threshold", 0.69}});
    way("bild, no fallback", "bild",
        {{"rollback_threshold", 0.69}, {"fallback_threshold", 0.0}, {"max_small_run", int64_t{0}}});
    way("bild, early exit", "bild",
        {{"rollback_threshold", 0.5}, {"fallback_threshold", 0.05}, {"early_exit", true}});
    way("bita", "bita", {{"pace", std::string("PACE_FIXED")}});
    way("bita, a full tree", "bita",
        {{"pace", std::string("PACE_FIXED")},
         {"tree", std::string("TREE_FULL")},
         {"num_candidates", int64_t{3}}});
    return ways;
  }

  const Served served;
  const test::AdapterFolders folders;
};

TEST_P(EncoderDecoderPairs, ExactMethodsAreExact) {
  const auto engine = make_engine(config());
  ASSERT_NE(engine, nullptr);
  int64_t accepted = 0, rollbacks = 0, predicted = 0;
  for (int prompt = 0; prompt < served.golden.prompts(); prompt += 3) {
    for (auto& [name, request] : exact_ways(prompt)) {
      SCOPED_TRACE(absl::StrCat(name, ", prompt ", prompt));
      const auto sink = run(*engine, request);
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->start().contract, Contract::kExact);
      EXPECT_EQ(sink->ids(), served.golden.greedy(prompt));
      accepted += sink->end().stats.small_tokens;
      if (request.method == "bild") rollbacks += sink->end().stats.own[BildFigures::kRollbacks];
      if (request.method == "bita") predicted += sink->end().stats.small_tokens;
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(rollbacks, 10);
  EXPECT_GT(predicted, 10);  // of untrained masks
}

TEST_P(EncoderDecoderPairs, SampledTokensAreThoseOfAutoregressiveDecoding) {
  const auto engine = make_engine(config());
  ASSERT_NE(engine, nullptr);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const auto sampled = [&](const char* method) {
      GenerateRequest r = served.request(static_cast<int>(seed) + 4, "pair");
      r.method = method;
      r.sampling.temperature = 0.9;
      r.sampling.seed = seed;
      r.n = 2;
      return r;
    };
    const auto alone = run(*engine, sampled(kAutoregressive));
    ASSERT_TRUE(alone->wait().ok()) << alone->wait();
    EXPECT_NE(alone->ids(0), alone->ids(1));
    for (const char* method : {"speculative", "ngram", "bita"}) {
      const auto sink = run(*engine, sampled(method));
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->ids(0), alone->ids(0)) << method << ", seed " << seed;
      EXPECT_EQ(sink->ids(1), alone->ids(1)) << method << ", seed " << seed;
    }
  }
}

// All methods at once, with memory for few requests, so that some are preempted.
// (decode/source_test.cpp and the simulator check preemption itself; here it depends on timing.)
TEST_P(EncoderDecoderPairs, ManyRequestsInLittleMemoryAnswerAsAlone) {
  EngineConfig little = config();
  for (ModelConfig& model : little.models) {
    model.kv_pages = 40;
    model.page_rows = 4;
  }
  const auto engine = make_engine(std::move(little));
  ASSERT_NE(engine, nullptr);
  std::vector<std::pair<int, std::shared_ptr<Recorder>>> sinks;
  for (int prompt = 0; prompt < 10; ++prompt) {  // of short sources, so that many run at once
    const auto ways = exact_ways(prompt);
    for (const size_t i : {0U, 3U, 5U, 6U}) {
      sinks.emplace_back(prompt, std::make_shared<Recorder>());
      engine->submit(ways[i].second, sinks.back().second);
    }
  }
  for (const auto& [prompt, sink] : sinks) {
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    EXPECT_EQ(sink->ids(), served.golden.greedy(prompt)) << "prompt " << prompt;
  }
  for (const ModelSeries& m : engine->metrics().models) {  // hangs if they leak
    while (m.kv_pages_used.value() > 0) std::this_thread::yield();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, EncoderDecoderPairs, ::testing::Values(1, 2));

// PPD: the lower half of the decoder on another device, with an encoder of its own.
TEST(EncoderDecoders, PredictivePipelinedDecodingIsExact) {
  const Served served("t5_v1_1", 112);
  EngineConfig config = pair_config(served, 2);
  config.models[1].name = "worker";
  DeploymentConfig& deployment = config.deployments[0];
  deployment.small.clear();
  deployment.methods.clear();
  deployment.methods["ppd"] = {{"exit_layer", int64_t{1}},
                               {"workers", std::vector<std::string>{"worker"}}};
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  for (int prompt = 0; prompt < served.golden.prompts(); prompt += 3) {
    GenerateRequest r = served.request(prompt, "pair");
    r.method = "ppd";
    r.require_contract = Contract::kExact;
    const auto sink = run(*engine, r);
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    EXPECT_EQ(sink->ids(), served.golden.greedy(prompt)) << "prompt " << prompt;
  }
}

// The models in the repository, with their deployment file.
EngineConfig shipped() {
  auto config = load_deployment(std::string(TANDEM_SOURCE_DIR) + "/deploy/docstring.textproto");
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return {};
  if (config->devices.empty()) config->devices.push_back({});
  config->devices[0].threads = 1;
  return *std::move(config);
}

TEST(EncoderDecoders, TheShippedPairDescribesFunctions) {
  EngineConfig config = shipped();
  ModelConfig small = config.models[0];
  small.name = "docstring-small";
  small.path = std::string(TANDEM_SOURCE_DIR) + "/models/docstring-small";
  config.models.push_back(std::move(small));
  config.deployments.push_back({"pair", "docstring-large", "docstring-small"});
  config.deployments.back().methods["bild"] = {{"rollback_threshold", 0.69}};
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  std::set<std::string> texts;
  int64_t drafted = 0;
  for (const char* source :
       {"docstring: def read(self, size=-1):\n    return self._file.read(size)\n",
        "docstring: def is_empty(self):\n    return len(self.queue) == 0\n",
        "name: def _(self):\n    self.file.close()\n    self.file = None\n",
        "name: def _(self):\n    self.assertEqual(len('abc'), 3)\n"}) {
    GenerateRequest r = testing::request_for(std::string(source), 40);
    r.model = "pair";
    r.stopping.ignore_eos = false;
    r.method = kAutoregressive;
    const auto alone = run(*engine, r);
    ASSERT_TRUE(alone->wait().ok()) << alone->wait();
    EXPECT_EQ(alone->end().reason, FinishReason::kEos) << alone->text();
    texts.insert(alone->text());
    for (const char* method : {"bild", "speculative"}) {
      r.method = method;
      r.require_contract = Contract::kExact;
      const auto sink = run(*engine, r);
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->text(), alone->text()) << method;
      drafted += sink->end().stats.small_tokens;
    }
  }
  EXPECT_EQ(texts.size(), 4U);  // the prompt matters
  EXPECT_FALSE(texts.contains(""));
  EXPECT_GT(drafted, 4);
}

// The large model conditions the small one, which answers or drafts for it.
TEST(EncoderDecoders, TheShippedSmallModelIsConditioned) {
  EngineConfig config = shipped();
  config.deployments.push_back({"unconditioned", "docstring-small-conditioned", ""});
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  std::set<std::string> texts;
  int64_t other = 0, kept = 0;
  for (const char* source :
       {"docstring: def read(self, size=-1):\n    return self._file.read(size)\n",
        "docstring: def is_empty(self):\n    return len(self.queue) == 0\n",
        "docstring: def send(self, data):\n    self.socket.sendall(data)\n",
        "docstring: def test_add(self):\n    self.assertEqual(add(1, 2), 3)\n"}) {
    GenerateRequest r = testing::request_for(std::string(source), 40);
    r.model = "docstring";
    r.stopping.ignore_eos = false;
    r.method = "llm_to_slm";
    const auto conditioned = run(*engine, r);
    ASSERT_TRUE(conditioned->wait().ok()) << conditioned->wait();
    EXPECT_EQ(conditioned->start().contract, Contract::kLossy);
    EXPECT_EQ(conditioned->end().reason, FinishReason::kEos) << conditioned->text();
    EXPECT_EQ(conditioned->end().stats.large_passes, 1);
    EXPECT_EQ(conditioned->end().stats.large_tokens, 0);
    EXPECT_EQ(conditioned->end().stats.small_tokens,
              static_cast<int64_t>(conditioned->ids().size()));
    texts.insert(conditioned->text());

    GenerateRequest alone = r;
    alone.method = kAutoregressive;
    const auto large = run(*engine, alone);
    alone.model = "unconditioned";
    const auto small = run(*engine, alone);
    ASSERT_TRUE(large->wait().ok() && small->wait().ok());
    other += conditioned->text() == small->text() ? 0 : 1;

    r.parameters = {{"speculative", true}};
    r.require_contract = Contract::kExact;
    const auto verified = run(*engine, r);
    ASSERT_TRUE(verified->wait().ok()) << verified->wait();
    EXPECT_EQ(verified->ids(), large->ids());
    kept += verified->end().stats.small_tokens;
  }
  EXPECT_GE(texts.size(), 3U);  // the prompt matters
  EXPECT_FALSE(texts.contains(""));
  EXPECT_GE(other, 1);  // and so does the conditioning
  EXPECT_GE(kept, 4);
}

TEST(EncoderDecoders, UnsupportedRequestsAreRefused) {
  const Served served("mt5", 128);
  EngineConfig config = alone(served);
  config.limits.step_rows = 32;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  GenerateRequest longer = served.request(14, "t5");  // 40 tokens
  const auto sink = run(*engine, longer);
  EXPECT_EQ(sink->wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sink->wait().message()),
              HasSubstr("prompt: 40 tokens; allowed: at most 32 (what the encoder reads at once)"));
  longer.truncate_prompt_tokens = 32;
  EXPECT_TRUE(run(*engine, longer)->wait().ok());

  absl::Status scored;
  std::promise<void> done;
  ScoreRequest score;
  score.model = "t5";
  score.prompt = std::vector<Token>{3, 4};
  score.continuation = std::vector<Token>{5};
  engine->score(score, [&](const absl::StatusOr<ScoreResult>& result) {
    scored = result.status();
    done.set_value();
  });
  done.get_future().wait();
  EXPECT_EQ(scored.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(scored.message()), HasSubstr("has an encoder"));

  // A decoder-only model and a model with an encoder cannot draft for each other.
  const Served decoder("gpt2", 128);
  EngineConfig mixed = alone(served);
  ModelConfig small = mixed.models[0];
  small.name = "gpt2";
  small.path = decoder.path();
  mixed.models.push_back(small);
  mixed.deployments[0].small = "gpt2";
  const auto refused = Engine::create(mixed);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("deployments[t5].small: \"gpt2\""));
}

}  // namespace
}  // namespace tandem
#endif
