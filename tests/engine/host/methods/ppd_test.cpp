// A large model and workers of its lower layers on devices and lanes beside it: the demo's model,
// and deployments that do not fit.
#include <gtest/gtest.h>

#include <functional>

#include "tests/engine/host/kit.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;

constexpr int kLayers = 8;  // of the demo's large model

void add_model(EngineConfig& config, const std::string& name, const std::string& device,
               int layers) {
  ModelConfig& model = config.models.emplace_back();
  model.name = name;
  model.path = std::string(TANDEM_SOURCE_DIR) + "/models/code-large";
  model.device = device;
  model.layers = layers;
}

// The large model on cpu:0, workers on these devices.
EngineConfig pipeline(int exit_layer, const std::vector<std::string>& devices) {
  EngineConfig config;
  const auto add_device = [&config](const std::string& name) {
    DeviceConfig& d = config.devices.emplace_back();
    d.index = name[4] - '0';
    d.lane = name.size() > 5 ? name[6] - '0' : 0;
    d.threads = 1;
    d.memory_bytes = 64 << 20;
  };
  add_device("cpu:0");
  add_model(config, "large", "cpu:0", 0);
  std::vector<std::string> workers;
  for (const std::string& device : devices) {
    workers.push_back("worker" + std::to_string(workers.size()));
    add_device(device);
    add_model(config, workers.back(), device, kLayers - exit_layer);
  }
  DeploymentConfig& deployment = config.deployments.emplace_back();
  deployment.name = "code";
  deployment.large = "large";
  deployment.methods["ppd"] = {{"exit_layer", exit_layer}, {"workers", workers}};
  return config;
}

// Written for this test, in the demo models' language.
const char* const kPrompts[] = {
    "def count_words(text):\n    counts = {}\n",
    "    for name, value in sorted(headers.items()):\n",
    "x = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "    def test_empty(self):\n        self.assertEqual(",
};

GenerateRequest request(int i, const std::string& method) {
  GenerateRequest r = testing::request_for(std::string(kPrompts[i % std::size(kPrompts)]), 24);
  r.model = "code";
  r.method = method;
  r.sampling.seed = static_cast<uint64_t>(i);
  r.sampling.temperature = i % 2 == 0 ? 0 : 0.8F;
  return r;
}

TEST(PpdMethod, GivesTheTokensOfAutoregressiveDecodingOnRealModels) {
#ifndef TANDEM_WITH_TORCH
  GTEST_SKIP() << "built without LibTorch";
#endif
  const std::vector<std::string> one_lane = {"cpu:0/1"}, two = {"cpu:1", "cpu:2"};
  for (const auto& [exit_layer, devices] : {std::pair{4, one_lane}, {6, one_lane}, {5, two}}) {
    const auto engine = make_engine(pipeline(exit_layer, devices));
    ASSERT_NE(engine, nullptr);
    constexpr int kRequests = 8;
    std::vector<std::shared_ptr<Recorder>> by_ppd, by_ar;
    for (int i = 0; i < kRequests; ++i) {  // all at once
      GenerateRequest r = request(i, "ppd");
      r.parameters = {{"num_candidates", 1 + i % 4}};
      engine->submit(r, by_ppd.emplace_back(std::make_shared<Recorder>()));
      engine->submit(request(i, "autoregressive"),
                     by_ar.emplace_back(std::make_shared<Recorder>()));
    }
    int64_t adopted = 0;
    for (size_t i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(by_ppd[i]->wait().ok()) << by_ppd[i]->wait();
      ASSERT_TRUE(by_ar[i]->wait().ok()) << by_ar[i]->wait();
      EXPECT_EQ(by_ppd[i]->ids(), by_ar[i]->ids()) << exit_layer << ", request " << i;
      adopted += by_ppd[i]->end().stats.own[3];
    }
    EXPECT_GT(adopted, kRequests) << "of some 24 tokens each";
  }
}

TEST(PpdMethod, RefusesDeploymentsThatDoNotFit) {
#ifndef TANDEM_WITH_TORCH
  GTEST_SKIP() << "built without LibTorch";
#endif
  const struct {
    const char* message;
    std::function<void(EngineConfig&)> change;
  } kCases[] = {
      {"deployments[code].ppd.exit_layer: 3; allowed: [4, 7], from half of the large model's 8 "
       "layers on",
       [](EngineConfig& c) { set_setting(&c.deployments[0].methods["ppd"], "exit_layer", 3); }},
      {"deployments[code].ppd.exit_layer: 8; allowed: [4, 7], from half of the large model's 8 "
       "layers on",
       [](EngineConfig& c) { set_setting(&c.deployments[0].methods["ppd"], "exit_layer", 8); }},
      {"deployments[code].ppd.workers: \"worker0\" with layers: 3; allowed: 4, as many as the "
       "large "
       "model has above exit_layer",
       [](EngineConfig& c) { c.models[1].layers = 3; }},
      {"deployments[code].ppd.workers: \"worker0\" with device: cpu:0; allowed: a device or a lane "
       "(cpu:0/1) beside the large model's",
       [](EngineConfig& c) { c.models[1].device = "cpu:0"; }},
      {"deployments[code].ppd.workers: \"worker0\" with page_rows: 8; allowed: 16",
       [](EngineConfig& c) { c.models[1].page_rows = 8; }},
      {"deployments[code].ppd.workers: \"worker0\" with another dtype or kv_dtype; allowed: those "
       "of the large model",
       [](EngineConfig& c) { c.models[1].kv_dtype = DType::kBFloat16; }},
      {"deployments[code].ppd.workers: \"worker0\" with another path; allowed: that of the large "
       "model, large",
       [](EngineConfig& c) {
         c.models[1].path = std::string(TANDEM_SOURCE_DIR) + "/models/code-small";
         c.models[1].layers = 0;
       }},
      {"deployments[code].ppd.workers: \"nobody\"; allowed: names of models: large, worker0",
       [](EngineConfig& c) {
         set_setting(&c.deployments[0].methods["ppd"], "workers",
                     std::vector<std::string>{"nobody"});
       }},
  };
  for (const auto& c : kCases) {
    EngineConfig config = pipeline(4, {"cpu:0/1"});
    c.change(config);
    const auto engine = Engine::create(std::move(config));
    ASSERT_FALSE(engine.ok()) << c.message;
    EXPECT_EQ(engine.status().message(), c.message);
  }
}

TEST(PpdMethod, IsOfferedWhereThereAreWorkers) {
  EngineConfig config = testing::fake_engine_config();
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  GenerateRequest r = testing::request_for("text", 4);
  r.method = "ppd";
  const auto recorder = std::make_shared<Recorder>();
  engine->submit(r, recorder);
  EXPECT_EQ(recorder->wait().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
