// LLM-to-SLM between models with distinct tokenizers: code-large conditions a golden model whose
// tokens are a few letters. The deployment offers this and the large model's own answers.
#include <gmock/gmock.h>

#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/host/byte_level.h"
#include "tests/engine/host/served_golden.h"

#ifdef TANDEM_WITH_TORCH
namespace tandem {
namespace {

using testing::byte_level_tokenizer;
using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::run;
using testing::Served;

constexpr int kInner = 12;

std::vector<float> numbers(size_t n, float scale) {
  std::vector<float> all(n);
  uint32_t x = 12345;
  for (float& v : all) {
    x = x * 1664525 + 1013904223;
    v = scale * (static_cast<float>(x >> 8) / 8388608.0f - 1);
  }
  return all;
}

class LlmToSlmCrossTokenizer : public ::testing::Test {
 protected:
  // `scale` 0: it adds nothing.
  ExtraConfig projector(const std::string& name, float scale, const std::string& fusion = "add",
                        const std::string& tokens = "aligned") {
    const int64_t hidden = small.base.hidden_size, source = large.base.hidden_size;
    const auto cells = static_cast<size_t>(kInner * source);
    return small.write(
        name,
        {{"kind", "projector"},
         {"layer", 5},
         {"fusion", fusion},
         {"tokens", tokens},
         {"source", {{"hidden_size", source}, {"layers", 8}, {"fingerprint", large.fingerprint}}}},
        {{"0.weight", {kInner, source}, numbers(cells, 0.1f)},
         {"0.bias", {kInner}, numbers(kInner, 0.1f)},
         {"2.weight", {hidden, kInner}, numbers(static_cast<size_t>(hidden) * kInner, scale)},
         {"2.bias", {hidden}, numbers(static_cast<size_t>(hidden), scale)}});
  }

  EngineConfig config_of(const ExtraConfig& extra, int64_t large_pages = 0,
                         int64_t small_pages = 0) const {
    EngineConfig config;
    for (int i = 0; i < 2; ++i) {
      DeviceConfig& d = config.devices.emplace_back();
      d.index = i;
      d.threads = 1;
      d.memory_bytes = 96 << 20;
    }
    ModelConfig& l = config.models.emplace_back();
    l.name = "large";
    l.path = kLarge;
    l.kv_pages = large_pages;
    ModelConfig& s = config.models.emplace_back();
    s.name = "small";
    s.path = served.path();
    s.device = "cpu:1";
    s.kv_pages = small_pages;
    s.extras = {extra};
    config.deployments.push_back({"pair", "large", "small"});
    config.deployments[0].methods["llm_to_slm"] = {{"adapter", extra.name}};
    config.deployments.push_back({"writer", "small", ""});
    config.deployments.push_back({"reader", "large", ""});
    return config;
  }

  static std::string error(const EngineConfig& config) {
    const auto engine = Engine::create(config);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? "" : std::string(engine.status().message());
  }

  inline static const std::string kLarge = std::string(TANDEM_SOURCE_DIR) + "/models/code-large";
  // 128 rows, as many as tokens at most.
  const Served served{"mistral", 128, byte_level_tokenizer({{"d", "e"}, {"de", "f"}, {"r", "e"}})};
  const test::AdapterFolders large{kLarge};
  test::AdapterFolders small{served.path()};
};

GenerateRequest asking(const std::string& model, const std::string& method, int i) {
  static const char* const kPrompts[] = {"def words(text):\n    counts = {}\n", "import socket",
                                         "x = [1, 2, 3, 1, 2,"};
  GenerateRequest r = testing::request_for(std::string(kPrompts[i % 3]), 12 + i);
  r.model = model;
  r.method = method;
  r.stopping.ignore_eos = true;
  if (i % 2 == 1) {
    r.sampling.temperature = 0.8;
    r.sampling.seed = static_cast<uint64_t>(i);
  }
  return r;
}

// docs/reliability.md, oracle 4: its tokens, log-probabilities, stops and usage are the small
// model's own.
TEST_F(LlmToSlmCrossTokenizer, AZeroProjectorIsThePlainSmallModel) {
  const auto engine = make_engine(config_of(projector("zero", 0)));
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 9; ++i) {
    GenerateRequest conditioned = asking("pair", "llm_to_slm", i);
    GenerateRequest alone = asking("writer", kAutoregressive, i);
    for (GenerateRequest* const r : {&conditioned, &alone}) {
      r->top_logprobs = 3;
      r->skip_special_tokens = false;
      if (i == 2) set_setting(&r->beam, "width", int64_t{4});
      if (i == 4) r->truncate_prompt_tokens = 5;
      if (i == 6) r->stopping.stop_sequences = {"e"};
    }
    const auto got = run(*engine, conditioned), want = run(*engine, alone);
    ASSERT_TRUE(got->wait().ok()) << got->wait();
    EXPECT_EQ(got->ids(), want->ids()) << i;
    EXPECT_EQ(got->text(), want->text()) << i;
    EXPECT_EQ(got->end().usage.prompt_tokens, want->end().usage.prompt_tokens);
    EXPECT_EQ(got->end().reason, want->end().reason);
    EXPECT_EQ(got->start().contract, Contract::kLossy);
    for (size_t t = 0; t < got->tokens().size(); ++t) {
      EXPECT_EQ(got->tokens()[t].logprob, want->tokens()[t].logprob);
    }
    std::string spelled;
    const auto bytes_of = engine->token_bytes(conditioned);
    for (const Token t : got->ids()) spelled += bytes_of(t);
    if (i != 6) EXPECT_EQ(spelled, got->text()) << i;
  }
}

// The large model's prompt changes the small model's answer. The large model's own answers do not
// change.
TEST_F(LlmToSlmCrossTokenizer, TheLargeModelConditionsTheAnswer) {
  const auto engine = make_engine(config_of(projector("some", 0.3f)));
  ASSERT_NE(engine, nullptr);
  int changed = 0;
  for (int i = 0; i < 6; ++i) {
    const auto got = run(*engine, asking("pair", "llm_to_slm", i));
    changed += got->ids() != run(*engine, asking("writer", kAutoregressive, i))->ids();
    EXPECT_EQ(got->end().stats.large_passes, 1);
    for (const TokenInfo& t : got->tokens()) EXPECT_EQ(t.provenance.confirmed, Source::kSmall);
    EXPECT_EQ(run(*engine, asking("pair", kAutoregressive, i))->ids(),
              run(*engine, asking("reader", kAutoregressive, i))->ids());
  }
  EXPECT_GT(changed, 3);
}

// The prompt is tokenized for the model that answers, before a method is planned.
TEST_F(LlmToSlmCrossTokenizer, AutoIsTheDefaultOrTheLargeModelItself) {
  EngineConfig config = config_of(projector("some", 0.3f));
  config.deployments[0].default_method = "llm_to_slm";
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 4; ++i) {
    GenerateRequest request = asking("pair", kAuto, i);
    const auto got = run(*engine, request);
    EXPECT_EQ(got->start().method, "llm_to_slm");
    EXPECT_EQ(got->ids(), run(*engine, asking("pair", "llm_to_slm", i))->ids());
    GenerateRequest large = asking("reader", kAutoregressive, i);
    request.require_contract = Contract::kExact;
    if (i == 2) {
      request.require_contract = Contract::kLossy;
      for (GenerateRequest* const r : {&request, &large}) {
        set_setting(&r->beam, "width", int64_t{3});
      }
    }
    const auto exact = run(*engine, request);
    EXPECT_EQ(exact->start().method, kAutoregressive);
    EXPECT_EQ(exact->ids(), run(*engine, large)->ids()) << i;
  }
}

// The small model's context is too short for the whole answer, and no other model can continue it.
TEST_F(LlmToSlmCrossTokenizer, AutoEndsAtTheSmallModelsContext) {
  EngineConfig config = config_of(projector("some", 0.3f), 0, 18);
  config.deployments[0].default_method = "llm_to_slm";
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = asking("pair", kAuto, 0);
  request.stopping.max_new_tokens.reset();
  const auto got = run(*engine, request);
  ASSERT_TRUE(got->wait().ok()) << got->wait();
  EXPECT_EQ(got->start().method, "llm_to_slm");
  request.method = "llm_to_slm";
  const auto named = run(*engine, request);
  ASSERT_TRUE(named->wait().ok()) << named->wait();
  EXPECT_EQ(got->ids(), named->ids());
  EXPECT_GT(got->ids().size(), 12U);
  EXPECT_EQ(got->end().reason, named->end().reason);
  request.method = kAuto;
  request.stopping.max_new_tokens = 1000;
  EXPECT_THAT(std::string(run(*engine, request)->wait().message()),
              HasSubstr("max_new_tokens: 1000; allowed: at most"));
}

TEST_F(LlmToSlmCrossTokenizer, TokenPromptsAreInTheSourcesTokensOrRefused) {
  GenerateRequest request = asking("pair", "llm_to_slm", 0);
  request.prompt = std::vector<Token>{5, 300, 7};  // the small model has no 300
  const auto aligned = make_engine(config_of(projector("aligned", 0.2f)));
  EXPECT_THAT(std::string(run(*aligned, request)->wait().message()),
              HasSubstr("prompt: token_ids; allowed: text, chat with method llm_to_slm (large and "
                        "small have different tokens)"));
  const auto source = make_engine(config_of(projector("source", 0.2f, "replace", "source")));
  const auto got = run(*source, request);
  EXPECT_TRUE(got->wait().ok()) << got->wait();
  EXPECT_EQ(got->end().usage.prompt_tokens, 3);
}

TEST_F(LlmToSlmCrossTokenizer, ManyConcurrentRequestsAnswerAsAlone) {
  for (const std::string tokens : {"aligned", "source"}) {
    const auto engine = make_engine(config_of(projector(tokens, 0.2f, "replace", tokens), 20, 20));
    ASSERT_NE(engine, nullptr);
    static const char* const kMethods[] = {"llm_to_slm", "llm_to_slm", "autoregressive"};
    const auto ask = [&](int i) {
      GenerateRequest r = asking("pair", kMethods[i % 3], i);
      r.n = r.sampling.temperature && i % 3 == 1 ? 2 : 1;
      return r;
    };
    std::vector<std::shared_ptr<Recorder>> alone, together;
    for (int i = 0; i < 24; ++i) {
      alone.push_back(std::make_shared<Recorder>(ask(i).n));
      engine->submit(ask(i), alone.back());
      EXPECT_TRUE(alone.back()->wait().ok()) << alone.back()->wait();
    }
    for (int i = 0; i < 24; ++i) {
      together.push_back(std::make_shared<Recorder>(ask(i).n));
      engine->submit(ask(i), together.back());
    }
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_TRUE(together[i]->wait().ok());
      EXPECT_EQ(together[i]->ids(), alone[i]->ids()) << tokens << " " << i;
      const bool two = ask(static_cast<int>(i)).n == 2;
      if (two) EXPECT_EQ(together[i]->ids(1), alone[i]->ids(1)) << tokens << " " << i;
    }
  }
}

TEST_F(LlmToSlmCrossTokenizer, TooLongPromptsNameTheModel) {
  std::string longer;
  for (int i = 0; i < 200; ++i) longer += "x = 1\n";
  const auto refusal = [&](int64_t large_pages, int64_t small_pages) {
    const auto engine = make_engine(config_of(projector("p", 0), large_pages, small_pages));
    GenerateRequest request = testing::request_for(longer, 4);
    request.method = "llm_to_slm";
    const absl::Status status = run(*engine, request)->wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(18, 0), HasSubstr("(context of large, which reads it)"));
  EXPECT_THAT(refusal(0, 18), HasSubstr("of small, which writes, less one new token)"));
}

TEST_F(LlmToSlmCrossTokenizer, MisfitsAreRefusedAtStart) {
  EXPECT_THAT(
      error(config_of(projector("shared", 0, "add", "shared"))),
      HasSubstr("deployments[pair].llm_to_slm.adapter: \"shared\", whose tokens are shared; "
                "allowed: source or aligned, as large and small have different tokens"));
  EngineConfig config = config_of(projector("fine", 0));
  config.deployments[0].methods["llm_to_slm"].push_back({"speculative", true});
  EXPECT_THAT(error(config), HasSubstr("deployments[pair].llm_to_slm.speculative: true; allowed: "
                                       "false, as small and large have different tokens"));
  config = config_of(projector("fine", 0));
  config.deployments[0].default_method = "speculative";
  EXPECT_THAT(error(config), HasSubstr("deployments[pair].default_method: speculative; allowed: "
                                       "autoregressive, llm_to_slm"));
  config.deployments[0].default_method.clear();
  config.deployments[0].methods.clear();
  EXPECT_THAT(error(config), HasSubstr("different vocabulary sizes"));
}

// Tokens that are words have no position in the text.
TEST_F(LlmToSlmCrossTokenizer, TokenizersWithoutAnAlignmentAreRefusedByName) {
  const Served words{"mistral", 128};
  EngineConfig config = config_of(projector("aligned", 0));
  config.models[1].path = words.path();
  EXPECT_THAT(error(config),
              HasSubstr("deployments[pair].llm_to_slm.adapter: \"aligned\", whose tokens are "
                        "aligned; allowed: one whose tokens are the source's, as the tokenizer of "
                        "small has no alignment: its tokens spell"));
  config.models[1].extras = {projector("source", 0, "replace", "source")};
  config.deployments[0].methods["llm_to_slm"] = {{"adapter", "source"}};
  EXPECT_TRUE(Engine::create(config).ok());
}

}  // namespace
}  // namespace tandem
#endif
