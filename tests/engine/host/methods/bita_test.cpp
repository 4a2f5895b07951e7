// BiTA on an engine with weights: random masks and prompts change no token of autoregressive
// decoding, greedy or sampled with a seed (docs/reliability.md, oracles 1 and 9).
#ifdef TANDEM_WITH_TORCH
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;

constexpr int kMasks = 4;
constexpr int kTokens = 40;

std::vector<float> numbers(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(static_cast<size_t>(n));
  for (float& x : all) x = normal(random);
  return all;
}

// A golden model with some tokenizer, and masks with and without prompts.
class Bita : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    const fs::path data = fs::path(TANDEM_SOURCE_DIR) / "tests";
    const fs::path model = data / "data/golden_models" / GetParam();
    fs::copy(model, directory_.path());
    fs::copy(data / "engine/text/data/tokenizers/llama2/tokenizer.json", directory_.path());
    folders_ = std::make_unique<test::AdapterFolders>(model.string());
    config_ = testing::real_engine_config("tiny", directory_.path(), DType::kFloat64);
    config_.devices[0].memory_bytes = 64 << 20;
    config_.deployments.clear();
    for (const int prompts : {0, 3, 16, 21}) {
      const std::string name = "p" + std::to_string(prompts);
      config_.models[0].extras.push_back(masks(name, prompts));
      DeploymentConfig& d = config_.deployments.emplace_back();
      d.name = name;
      d.large = "tiny";
      d.methods["bita"] = {{"adapter", name}};
    }
  }

  ExtraConfig masks(const std::string& name, int64_t prompts, int64_t count = kMasks) const {
    const DecoderConfig& c = folders_->base;
    std::vector<test::Matrix> tensors{
        {"masks", {count, c.hidden_size}, numbers(count * c.hidden_size, 1)}};
    if (prompts > 0) {
      const std::vector<int64_t> shape{c.layers, prompts, c.kv_heads, c.head_dim};
      const int64_t n = c.layers * prompts * c.kv_heads * c.head_dim;
      tensors.push_back({"prompt.keys", shape, numbers(n, 2)});
      tensors.push_back({"prompt.values", shape, numbers(n, 3)});
    }
    return folders_->write(name, {{"kind", "masks"}}, tensors);
  }

  GenerateRequest request(uint64_t i, const std::string& model) const {
    std::mt19937_64 random(i);
    std::vector<Token> prompt(1 + random() % 30);
    for (Token& t : prompt) t = static_cast<Token>(random() % 100);
    GenerateRequest r = testing::request_for(prompt, kTokens);
    r.model = model;
    if (i % 2 == 1) {
      r.sampling.temperature = 0.9;
      r.sampling.top_p = 0.95;
      r.sampling.seed = i;
    }
    return r;
  }

  const test::TempDir directory_;
  std::unique_ptr<test::AdapterFolders> folders_;
  EngineConfig config_;
};

TEST_P(Bita, EveryTreeGivesTheTokensOfAr) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const std::pair<const char*, int> trees[] = {{"TREE_EFFICIENT", 8}, {"TREE_SPINE", 12},
                                               {"TREE_TRIANGLE", 6},  {"TREE_FULL", 2},
                                               {"TREE_CHAIN", 1},     {"TREE_STRAIGHTFORWARD", 1}};
  struct Sent {
    std::string what;
    std::shared_ptr<Recorder> ar, bita;
  };
  std::vector<Sent> all;
  uint64_t i = 0;
  for (const DeploymentConfig& d : config_.deployments) {
    for (const auto& [tree, candidates] : trees) {
      for (const int64_t num_masks : {1, 3, kMasks}) {
        Sent& sent = all.emplace_back();
        sent.what = d.name + ", " + tree + ", M = " + std::to_string(num_masks);
        sent.ar = std::make_shared<Recorder>();
        sent.bita = std::make_shared<Recorder>();
        GenerateRequest r = request(++i, d.name);
        engine->submit(r, sent.ar);
        r.method = "bita";
        r.require_contract = Contract::kExact;
        r.parameters = {{"tree", std::string(tree)},
                        {"num_candidates", int64_t{candidates}},
                        {"num_masks", num_masks},
                        {"pace", std::string(i % 3 == 0 ? "PACE_FASTEST" : "PACE_FIXED")}};
        engine->submit(r, sent.bita);
      }
    }
  }
  int64_t accepted = 0;
  for (const Sent& sent : all) {
    ASSERT_TRUE(sent.ar->wait().ok()) << sent.ar->wait();
    ASSERT_TRUE(sent.bita->wait().ok()) << sent.what << ": " << sent.bita->wait();
    ASSERT_EQ(sent.bita->ids(), sent.ar->ids()) << sent.what;
    accepted += sent.bita->end().stats.small_tokens;
  }
  EXPECT_GT(accepted, 50) << "guesses came true now and then";
}

TEST_P(Bita, MasksThatDoNotFitAreRefused) {
  const auto error = [&](const Settings& settings) {
    EngineConfig config = config_;
    config.deployments.resize(1);
    config.deployments[0].methods["bita"] = settings;
    const auto engine = Engine::create(std::move(config));
    return std::string(engine.status().message());
  };
  EXPECT_EQ(error({{"adapter", std::string("p3")}, {"num_masks", int64_t{5}}}),
            "deployments[p0].bita.num_masks: 5; allowed: 1 to 4, the masks of p3");
  EXPECT_THAT(error({{"adapter", std::string("p4")}}),
              HasSubstr("deployments[p0].bita.adapter: \"p4\"; allowed: p0, p3, p16, p21"));

  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  GenerateRequest r = request(0, "p0");
  r.method = "bita";
  r.parameters = {{"num_masks", int64_t{5}}};
  const auto refused = testing::run(*engine, r);
  EXPECT_EQ(refused->wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused->wait().message()),
              HasSubstr("bita.num_masks: 5; allowed: 1 to 4"));
  r.parameters = {{"tree", std::string("TREE_FULL")}, {"num_candidates", int64_t{16}}};
  const auto large = testing::run(*engine, r);
  EXPECT_THAT(std::string(large->wait().message()), HasSubstr("bita.tree"));
}

TEST_P(Bita, AnAdapterOfOneMaskNeedsNoParameter) {
  config_.models[0].extras.push_back(masks("one", 3, 1));
  config_.deployments[0].methods["bita"] = {{"adapter", std::string("one")}};
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  GenerateRequest r = request(0, "p0");
  const auto ar = testing::run(*engine, r);
  r.method = "bita";
  const auto bita = testing::run(*engine, r);
  ASSERT_TRUE(bita->wait().ok()) << bita->wait();
  EXPECT_EQ(bita->ids(), ar->ids());
}

INSTANTIATE_TEST_SUITE_P(Models, Bita, ::testing::Values("llama2", "llama3", "mistral", "gemma3"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace tandem
#endif
