// A model with its layers on several devices: every method gives the same tokens and
// log-probabilities as on one device.
#ifdef TANDEM_WITH_TORCH
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/host/kit.h"
#include "tests/engine/host/tiny_directory.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;

// "whole" on one device and "sharded" on three, each with a small model and a worker.
EngineConfig config_of(const std::string& directory) {
  EngineConfig config;
  for (const int index : {0, 1, 2}) {
    DeviceConfig& d = config.devices.emplace_back();
    d.index = index;
    d.threads = 1 + index % 2;
    d.memory_bytes = 16 << 20;
  }
  const auto add = [&](const std::string& name, const std::string& device) -> ModelConfig& {
    ModelConfig& model = config.models.emplace_back();
    model.name = name;
    model.path = directory;
    model.dtype = DType::kFloat64;
    model.device = device;
    return model;
  };
  add("whole", "cpu:0");
  add("sharded", "cpu:0").shards = {{"cpu:0", 2}, {"cpu:1", 1}, {"cpu:2", 3}};
  add("near", "cpu:1").dtype = DType::kInt8;
  add("worker", "cpu:2").layers = 3;
  for (const char* large : {"whole", "sharded"}) {
    DeploymentConfig& d = config.deployments.emplace_back();
    d = {large, large, "near"};
    d.methods["ppd"] = {{"exit_layer", 3}, {"workers", std::vector<std::string>{"worker"}}};
    DeploymentConfig& early = config.deployments.emplace_back();
    early = {std::string(large) + " early", large, ""};
    early.methods["bild"] = {{"early_exit_layer", 4}};
  }
  return config;
}

// All at once on either model.
void expect_equal_answers(Engine& engine) {
  struct Sent {
    std::shared_ptr<Recorder> whole, sharded;
  };
  std::vector<Sent> all;
  const struct {
    const char *method, *model;
  } ways[] = {{"autoregressive", ""}, {"speculative", ""}, {"ngram", ""}, {"ppd", ""},
              {"bild", ""},           {"bild", " early"}};
  for (uint64_t i = 0; i < 48; ++i) {
    std::vector<Token> prompt(3 + i % 17);
    for (size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<Token>((t * 13 + i) % 64);
    GenerateRequest r = testing::request_for(prompt, 24);
    r.method = ways[i % 6].method;
    r.logprobs = true;
    if (i % 2 == 1) {
      r.sampling.temperature = 0.7;
      r.sampling.seed = i;
    }
    Sent& sent = all.emplace_back();
    for (const bool sharded : {false, true}) {
      r.model = std::string(sharded ? "sharded" : "whole") + ways[i % 6].model;
      auto& sink = sharded ? sent.sharded : sent.whole;
      sink = std::make_shared<Recorder>();
      engine.submit(r, sink);
    }
  }
  for (const auto& [whole, sharded] : all) {
    ASSERT_TRUE(whole->wait().ok()) << whole->wait();
    ASSERT_TRUE(sharded->wait().ok()) << sharded->wait();
    EXPECT_EQ(sharded->ids(), whole->ids()) << whole->start().method;
    for (size_t t = 0; t < whole->tokens().size(); ++t) {
      EXPECT_EQ(sharded->tokens()[t].logprob, whole->tokens()[t].logprob);
    }
  }
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override { test::write_tiny_model(model_.path(), 1); }
  const test::TempDir model_;
};

// Prompts in chunks, and pages for a few requests only.
TEST_F(Shards, PreemptedRequestsAreRecomputed) {
  EngineConfig config = config_of(model_.path());
  config.limits.prefill_chunk_rows = 5;
  for (ModelConfig& m : config.models) m.kv_pages = 8;
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  do {
    expect_equal_answers(*engine);
  } while (engine->metrics().preemptions.value() == 0 && !HasFailure());
}

TEST_F(Shards, EveryMethodAnswersAsOnOneDevice) {
  const auto engine = make_engine(config_of(model_.path()));
  ASSERT_NE(engine, nullptr);
  expect_equal_answers(*engine);
  const DeploymentInfo info = *engine->deployment("sharded");
  EXPECT_EQ(info.models[0].device, "cpu:0+cpu:1+cpu:2");
  EXPECT_EQ(info.models[0].weight_bytes, engine->deployment("whole")->models[0].weight_bytes);
}

// A device's budget is charged for its layers, whichever device queue runs the model.
TEST_F(Shards, PagesComeOutOfEachDevicesBudget) {
  EngineConfig config;
  for (const int index : {0, 1}) {
    DeviceConfig& d = config.devices.emplace_back();
    d.index = index;
    d.threads = 1;
    d.memory_bytes = 16 << 20;
  }
  ModelConfig& model = config.models.emplace_back();
  model.name = "m";
  model.path = model_.path();
  model.shards = {{"cpu:0", 2}, {"cpu:1", 4}};
  config.deployments.push_back({"m", "m", ""});
  model.kv_pages = 64;
  ASSERT_NE(make_engine(config), nullptr);
  ModelConfig& fake = config.models.emplace_back();
  fake.name = "fake";
  fake.device = "cpu:1";
  fake.fake = testing::fake_model();
  EXPECT_THAT(std::string(Engine::create(config).status().message()),
              ::testing::HasSubstr("cpu:1: has models with weights and fake ones"));
  config.models.pop_back();
  config.devices[1].memory_bytes = 1 << 16;
  const auto refused = Engine::create(config);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()),
              ::testing::HasSubstr("device cpu:1: kv_pages of model m: 64 of "));
}

}  // namespace
}  // namespace tandem
#endif
