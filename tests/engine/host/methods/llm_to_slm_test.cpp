// LLM-to-SLM in a deployment: the demo's large model conditions its small one.
#include <gmock/gmock.h>

#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/host/kit.h"

#ifdef TANDEM_WITH_TORCH
namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::run;

std::string demo(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/models/" + name;
}

constexpr int kLarge = 320, kSmall = 160, kInner = 24;  // widths

class LlmToSlmPair : public ::testing::Test {
 protected:
  // `scale` 0: it adds nothing.
  ExtraConfig projector(const std::string& name, float scale, int layer = 5,
                        const std::string& fusion = "add") {
    const auto numbers = [](size_t n, float scale) {
      std::vector<float> all(n);
      uint32_t x = 12345;
      for (float& v : all) {
        x = x * 1664525 + 1013904223;
        v = scale * (static_cast<float>(x >> 8) / 8388608.0f - 1);
      }
      return all;
    };
    return small.write(
        name,
        {{"kind", "projector"},
         {"layer", layer},
         {"fusion", fusion},
         {"tokens", "shared"},
         {"source", {{"hidden_size", kLarge}, {"layers", 8}, {"fingerprint", large.fingerprint}}}},
        {{"0.weight", {kInner, kLarge}, numbers(size_t{kInner} * kLarge, 0.1f)},
         {"0.bias", {kInner}, numbers(kInner, 0.1f)},
         {"2.weight", {kSmall, kInner}, numbers(size_t{kSmall} * kInner, scale)},
         {"2.bias", {kSmall}, numbers(kSmall, scale)}});
  }

  // Two masks and a prompt of one row.
  ExtraConfig masks() const {
    const DecoderConfig& c = small.base;
    const auto numbers = [](const std::string& name, std::vector<int64_t> shape) {
      int64_t n = 1;
      for (const int64_t size : shape) n *= size;
      std::vector<float> values(static_cast<size_t>(n));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = 0.1F * static_cast<float>(i % 7) - 0.3F;
      return test::Matrix{name, std::move(shape), std::move(values)};
    };
    const std::vector<int64_t> rows = {c.layers, 1, c.kv_heads, c.head_dim};
    return small.write("masks", {{"kind", "masks"}},
                       {numbers("masks", {2, c.hidden_size}), numbers("prompt.keys", rows),
                        numbers("prompt.values", rows)});
  }

  static EngineConfig config_of(const ExtraConfig& extra, const std::string& small_device,
                                int64_t large_pages = 0, int64_t small_pages = 0) {
    EngineConfig config;
    for (const std::string name : {"cpu:0", "cpu:1"}) {
      if (name != "cpu:0" && name != small_device) continue;
      DeviceConfig& d = config.devices.emplace_back();
      d.index = name[4] - '0';
      d.threads = 1;
      d.memory_bytes = 96 << 20;
    }
    ModelConfig& l = config.models.emplace_back();
    l.name = "large";
    l.path = demo("code-large");
    l.kv_pages = large_pages;
    ModelConfig& s = config.models.emplace_back();
    s.name = "small";
    s.path = demo("code-small");
    s.device = small_device;
    s.kv_pages = small_pages;
    s.extras = {extra};
    config.deployments.push_back({"pair", "large", "small"});
    config.deployments[0].methods["llm_to_slm"] = {{"adapter", extra.name}};
    config.deployments.push_back({"alone", "small", ""});
    return config;
  }

  static std::string error(const EngineConfig& config) {
    const auto engine = Engine::create(config);
    EXPECT_FALSE(engine.ok());
    return std::string(engine.status().message());
  }

  const test::AdapterFolders large{demo("code-large")};
  test::AdapterFolders small{demo("code-small")};
};

GenerateRequest asking(const std::string& method, int i) {
  static const char* const kPrompts[] = {"def count_words(text):\n    counts = {}\n",
                                         "import socket\n\nclass Listener:\n    def __init__(",
                                         "x = [1, 2, 3, 1, 2,"};
  GenerateRequest r = testing::request_for(std::string(kPrompts[i % 3]), 24 + i);
  r.method = method;
  if (i % 2 == 1) {
    r.sampling.temperature = 0.8;
    r.sampling.seed = static_cast<uint64_t>(i);
  }
  return r;
}

// docs/reliability.md, oracle 4, on one device and two, with KV memory so small that requests are
// preempted.
TEST_F(LlmToSlmPair, AZeroProjectorIsThePlainSmallModel) {
  const ExtraConfig extra = projector("zero", 0);
  for (const char* device : {"cpu:0", "cpu:1"}) {
    const auto engine = make_engine(config_of(extra, device));
    ASSERT_NE(engine, nullptr);
    for (int i = 0; i < 4; ++i) {
      const auto conditioned = run(*engine, asking("llm_to_slm", i));
      GenerateRequest alone = asking("autoregressive", i);
      alone.model = "alone";
      const auto want = run(*engine, alone);
      EXPECT_EQ(conditioned->ids(), want->ids());
      EXPECT_EQ(conditioned->start().contract, Contract::kLossy);
      EXPECT_EQ(conditioned->end().stats.large_passes, 1);
    }
  }
}

TEST_F(LlmToSlmPair, ManyConcurrentRequestsAnswerAsAlone) {
  for (const std::string fusion : {"add", "replace"}) {
    const auto engine = make_engine(config_of(projector(fusion, 0.2f, 8, fusion), "cpu:1", 18, 18));
    ASSERT_NE(engine, nullptr);
    static const char* const kMethods[] = {"llm_to_slm", "autoregressive", "llm_to_slm",
                                           "speculative"};
    std::vector<std::shared_ptr<Recorder>> alone, together;
    for (int i = 0; i < 24; ++i) alone.push_back(run(*engine, asking(kMethods[i % 4], i)));
    for (int i = 0; i < 24; ++i) {
      together.push_back(std::make_shared<Recorder>());
      engine->submit(asking(kMethods[i % 4], i), together.back());
    }
    int64_t preempted = 0;
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_TRUE(together[i]->wait().ok());
      EXPECT_EQ(together[i]->ids(), alone[i]->ids()) << i;
      preempted += together[i]->end().stats.preemptions;
    }
    EXPECT_GT(preempted, 0);
  }
}

TEST_F(LlmToSlmPair, VerifiedItIsTheLargeModelsAnswer) {
  const auto engine = make_engine(config_of(projector("some", 0.05f), "cpu:0"));
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = asking("llm_to_slm", i);
    request.parameters = {{"speculative", true}, {"draft_tokens", int64_t{1 + i}}};
    request.require_contract = Contract::kExact;
    const auto got = run(*engine, request);
    EXPECT_EQ(got->start().contract, Contract::kExact);
    EXPECT_EQ(got->ids(), run(*engine, asking("autoregressive", i))->ids());
    EXPECT_GT(got->end().stats.draft_tokens, 0);
  }
}

// Its drafts are made as those of speculative decoding: with masks, a pace and a threshold.
TEST_F(LlmToSlmPair, VerifiedDraftsHaveTheSettingsOfSpeculativeDecoding) {
  EngineConfig config = config_of(projector("some", 0.05f), "cpu:0", 18, 18);
  config.models[1].extras.push_back(masks());
  config.deployments[0].methods["llm_to_slm"].push_back({"mask_adapter", std::string("masks")});
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  const std::vector<Settings> ways = {
      {{"num_masks", int64_t{2}}, {"draft_tokens", int64_t{6}}},
      {{"num_masks", int64_t{0}}, {"min_draft_probability", 0.3}, {"draft_tokens", int64_t{6}}},
      {{"pace", std::string("PACE_ADAPTIVE")}, {"draft_vocabulary", int64_t{40}}},
      {{"pace", std::string("PACE_FASTEST")}, {"draft_tokens", int64_t{12}}}};
  std::vector<std::shared_ptr<Recorder>> want, got;
  for (int i = 0; i < 12; ++i) want.push_back(run(*engine, asking("autoregressive", i)));
  for (int i = 0; i < 12; ++i) {
    GenerateRequest request = asking("llm_to_slm", i);
    request.parameters = ways[static_cast<size_t>(i) % ways.size()];
    request.parameters.push_back({"speculative", true});
    request.require_contract = Contract::kExact;
    got.push_back(std::make_shared<Recorder>());
    engine->submit(request, got.back());
  }
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(got[i]->wait().ok()) << i;
    EXPECT_EQ(got[i]->ids(), want[i]->ids()) << i;
  }
  GenerateRequest request = asking("llm_to_slm", 0);
  request.parameters = {{"speculative", true}, {"num_masks", int64_t{3}}};
  EXPECT_THAT(std::string(run(*engine, request)->wait().message()),
              HasSubstr("llm_to_slm.num_masks: 3; allowed: 1 to 2, the masks of masks"));
}

TEST_F(LlmToSlmPair, TooLongPromptsNameTheModel) {
  const std::string text = "x = 1\n";
  std::string longer;
  for (int i = 0; i < 200; ++i) longer += text;
  const auto refusal = [&](int64_t large_pages, int64_t small_pages) {
    const auto engine =
        make_engine(config_of(projector("p", 0), "cpu:0", large_pages, small_pages));
    GenerateRequest request = testing::request_for(longer, 4);
    request.method = "llm_to_slm";
    const auto sink = std::make_shared<Recorder>();
    engine->submit(request, sink);
    return std::string(sink->wait().message());
  };
  EXPECT_THAT(refusal(18, 0), HasSubstr("(context of large, which reads it)"));
  EXPECT_THAT(refusal(0, 18), HasSubstr("of small, which writes, less one new token)"));
}

TEST_F(LlmToSlmPair, MisfitsAreRefusedAtStart) {
  EngineConfig config = config_of(projector("some", 0), "cpu:0");
  config.deployments[0].methods["llm_to_slm"] = {{"adapter", "other"}};
  EXPECT_THAT(error(config),
              HasSubstr("deployments[pair].llm_to_slm.adapter: \"other\"; allowed: some, the "
                        "adapters among the extras of model small"));
  config.deployments[0].methods["llm_to_slm"] = {
      {"adapter", "some"}, {"speculative", true}, {"mask_adapter", "some"}};
  EXPECT_THAT(error(config), HasSubstr("deployments[pair].llm_to_slm.mask_adapter: \"some\"; "
                                       "allowed: an extra of kind \"masks\""));
  config.deployments[0].methods["llm_to_slm"] = {{"adapter", "some"}};
  config.models[0].path = demo("code-small");  // of the same vocabulary
  config.models[1].name = "small";
  EXPECT_THAT(error(config), HasSubstr("which has \""));
  config = config_of(projector("deep", 0, 9), "cpu:0");
  EXPECT_THAT(error(config), HasSubstr("layer: 9; allowed: integers from 1 to 8"));
}

}  // namespace
}  // namespace tandem
#endif
