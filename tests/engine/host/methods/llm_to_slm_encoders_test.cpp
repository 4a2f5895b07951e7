// LLM-to-SLM with encoders: T5 conditions T5 (its encoder) and GPT-2. Tokens are PyTorch's in fp64
// (make_llm_to_slm_goldens.py), in any batch.
#include <gmock/gmock.h>

#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/host/served_golden.h"

#ifdef TANDEM_WITH_TORCH
namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::run;
using testing::Served;

EngineConfig config_of(const Served& large, const Served& small, const ExtraConfig& extra,
                       DType dtype = DType::kFloat32, int64_t pages = 0) {
  EngineConfig config;
  for (int i = 0; i < 2; ++i) {
    DeviceConfig& d = config.devices.emplace_back();
    d.index = i;
    d.threads = 1;
    d.memory_bytes = 48 << 20;
  }
  for (const Served* const served : {&large, &small}) {
    ModelConfig& m = config.models.emplace_back();
    m.name = served == &large ? "large" : "small";
    m.path = served->path();
    m.device = served == &large ? "cpu:0" : "cpu:1";
    m.dtype = dtype;
    m.kv_pages = pages;
    if (pages > 0) m.page_rows = 4;
  }
  config.models[1].extras = {extra};
  config.deployments.push_back({"pair", "large", "small"});
  config.deployments[0].methods["llm_to_slm"] = {{"adapter", extra.name}};
  config.deployments.push_back({"writer", "small", ""});
  return config;
}

struct Pair {
  const char *name, *small;
  int large_words, small_words;  // named tokens
};
class EncoderPairs : public ::testing::TestWithParam<Pair> {
 protected:
  const Golden golden{std::string("../llm_to_slm/") + GetParam().name};
  const Served large{"t5_v1_1", GetParam().large_words},
      small{GetParam().small, GetParam().small_words};
};

// Also with little memory, where requests are preempted.
TEST_P(EncoderPairs, TokensAreThoseOfPyTorch) {
  for (const int64_t pages : {0, 80}) {
    const auto engine = make_engine(
        config_of(large, small, {"conditioned", golden.directory()}, DType::kFloat64, pages));
    ASSERT_NE(engine, nullptr);
    std::vector<std::pair<int, std::shared_ptr<Recorder>>> sinks;
    for (int i = 0; i < 3 * golden.prompts(); ++i) {
      const int prompt = i % golden.prompts();
      const std::vector<Token> want = golden.greedy(prompt);
      GenerateRequest r =
          testing::request_for(golden.prompt(prompt), static_cast<int>(want.size()));
      r.model = "pair";
      r.method = "llm_to_slm";
      r.stopping.ignore_eos = true;
      sinks.emplace_back(prompt, std::make_shared<Recorder>());
      engine->submit(r, sinks.back().second);
      if (i < golden.prompts()) EXPECT_TRUE(sinks.back().second->wait().ok());
    }
    for (const auto& [prompt, sink] : sinks) {
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      EXPECT_EQ(sink->ids(), golden.greedy(prompt)) << prompt;
      EXPECT_EQ(sink->start().contract, Contract::kLossy);
    }
    EXPECT_EQ(sinks[0].second->end().stats.large_passes, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, EncoderPairs,
                         ::testing::Values(Pair{"t5_add", "t5", 96, 96},
                                           Pair{"t5_replace", "t5", 96, 96},
                                           Pair{"mt5_replace", "mt5", 112, 128},
                                           Pair{"gpt2_replace", "gpt2", 112, 176}),
                         [](const auto& info) { return std::string(info.param.name); });

// A projector that adds nothing, from one model's encoder to another model.
class Unconditioned : public ::testing::TestWithParam<const char*> {
 protected:
  Unconditioned() : small(GetParam(), 96), to(small.path()), from(large.path()) {}

  ExtraConfig zero(const std::string& name, int layer = 2) const {
    const int64_t in = from.base.hidden_size, out = to.base.hidden_size;
    const auto zeros = [](int64_t n) { return std::vector<float>(static_cast<size_t>(n)); };
    return to.write(
        name,
        {{"kind", "projector"},
         {"layer", layer},
         {"fusion", "add"},
         {"tokens", "shared"},
         {"source", {{"hidden_size", in}, {"layers", 2}, {"fingerprint", from.fingerprint}}}},
        {{"0.weight", {out, in}, zeros(out * in)},
         {"0.bias", {out}, zeros(out)},
         {"2.weight", {out, out}, zeros(out * out)},
         {"2.bias", {out}, zeros(out)}});
  }
  GenerateRequest asking(const std::string& model, int i) const {
    std::vector<Token> prompt = large.golden.prompt(i);
    for (Token& t : prompt) t %= 96;
    GenerateRequest r = testing::request_for(prompt, 20);
    r.model = model;
    r.stopping.ignore_eos = true;
    if (model == "pair") r.method = "llm_to_slm";
    return r;
  }

  const Served large{"t5_v1_1", 96}, small;
  const test::AdapterFolders to, from;
};

// docs/reliability.md, oracle 4, sampled too, and the best of 4 beams with length penalty 0.6.
TEST_P(Unconditioned, AZeroProjectorIsThePlainSmallModel) {
  const auto engine = make_engine(config_of(large, small, zero("zero")));
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 12; ++i) {
    GenerateRequest conditioned = asking("pair", i), alone = asking("writer", i);
    conditioned.sampling.temperature = alone.sampling.temperature = i % 3 == 1 ? 0.9 : 0;
    conditioned.sampling.seed = alone.sampling.seed = 5;
    if (i % 3 == 2) {
      alone.method = kAutoregressive;
      for (GenerateRequest* const r : {&conditioned, &alone}) {
        r->stopping.ignore_eos = false;
        set_setting(&r->beam, "width", int64_t{4});
        set_setting(&r->beam, "length_penalty", 0.6);
      }
    }
    const auto got = run(*engine, conditioned), want = run(*engine, alone);
    ASSERT_TRUE(got->wait().ok()) << got->wait();
    EXPECT_EQ(got->ids(), want->ids()) << i;
  }
}

TEST_P(Unconditioned, EncodersConditionWithTheirLastLayer) {
  const auto engine = Engine::create(config_of(large, small, zero("low", 1)));
  EXPECT_THAT(std::string(engine.status().message()),
              HasSubstr("for rows of width 32 after layer 1; allowed: width 32 after layer 2, the "
                        "last of the encoder of model large"));
}

INSTANTIATE_TEST_SUITE_P(Writers, Unconditioned, ::testing::Values("t5", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

// A conditioned small model gives other answers than alone.
TEST(LlmToSlmEncoders, SpeculativeIsTheLargeModelsAnswer) {
  const Served large("t5_v1_1", 96), small("t5", 96);
  const Golden projector("../llm_to_slm/t5_add");
  const auto engine = make_engine(config_of(large, small, {"conditioned", projector.directory()}));
  ASSERT_NE(engine, nullptr);
  std::vector<std::string> offered;
  const DeploymentInfo info = *engine->deployment("pair");
  for (const MethodInfo& m : info.methods) offered.push_back(m.method);
  EXPECT_THAT(offered, ::testing::IsSupersetOf({"llm_to_slm", "speculative", "bild"}));
  for (int i = 0; i < 8; ++i) {
    GenerateRequest request = testing::request_for(projector.prompt(i % projector.prompts()), 24);
    request.model = "pair";
    request.stopping.ignore_eos = true;
    if (i % 2 == 1) {
      request.sampling.temperature = 0.9;
      request.sampling.seed = static_cast<uint64_t>(i);
    }
    request.method = kAutoregressive;
    const auto want = run(*engine, request);
    request.method = "llm_to_slm";
    request.parameters = {{"speculative", true}, {"draft_tokens", int64_t{1 + i % 5}}};
    request.require_contract = Contract::kExact;
    const auto got = run(*engine, request);
    ASSERT_TRUE(got->wait().ok()) << got->wait();
    EXPECT_EQ(got->ids(), want->ids()) << i;
    EXPECT_GT(got->end().stats.draft_tokens, 0);
    set_setting(&request.beam, "width", int64_t{4});
    EXPECT_EQ(run(*engine, request)->wait().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(LlmToSlmEncoders, MisfitsAreRefused) {
  const Served large("t5_v1_1", 112), small("gpt2", 176);
  const Golden projector("../llm_to_slm/gpt2_replace");
  EngineConfig config = config_of(large, small, {"conditioned", projector.directory()});
  config.limits.step_rows = 32;
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = testing::request_for(std::vector<Token>(33, 5), 4);
  request.model = "pair";
  request.method = "llm_to_slm";
  EXPECT_THAT(
      std::string(run(*engine, request)->wait().message()),
      HasSubstr("prompt: 33 tokens; allowed: at most 32 (context of large, which reads it)"));

  config.deployments[0] = {"pair", "small", "large"};  // GPT-2 conditions T5
  config.deployments[0].methods["llm_to_slm"] = {{"adapter", "conditioned"}};
  config.models[0].extras = {};
  const auto refused = Engine::create(config);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("deployments[pair].llm_to_slm.adapter: \"conditioned\""));
}

}  // namespace
}  // namespace tandem
#endif
