// PPD: a large model, with workers of its lower layers on other devices and device queues. The
// demo's model, and deployments whose settings do not fit.
#include "engine/decode/ppd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "absl/strings/str_replace.h"
#include "engine/host/config/config.h"
#include "tests/engine/backend/torch/adapter_folders.h"
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
    d.queue = name.size() > 5 ? name[6] - '0' : 0;
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

// Python, as the demo models know it.
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

// Sends all requests at once, with autoregressive ones that must give the same answers.
MethodStats expect_the_tokens_of_ar(const EngineConfig& config, const std::string& what) {
  constexpr size_t kRequests = 8;
  MethodStats sum;
  const auto engine = make_engine(config);
  if (engine == nullptr) return sum;
  std::vector<std::shared_ptr<Recorder>> by_ppd, by_ar;
  for (int i = 0; i < static_cast<int>(kRequests); ++i) {
    GenerateRequest r = request(i, "ppd");
    r.parameters = {{"num_candidates", 1 + i % 4}};
    engine->submit(r, by_ppd.emplace_back(std::make_shared<Recorder>()));
    engine->submit(request(i, "autoregressive"), by_ar.emplace_back(std::make_shared<Recorder>()));
  }
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_TRUE(by_ppd[i]->wait().ok()) << what << by_ppd[i]->wait();
    EXPECT_TRUE(by_ar[i]->wait().ok()) << what << by_ar[i]->wait();
    EXPECT_EQ(by_ppd[i]->ids(), by_ar[i]->ids()) << what << ", request " << i;
    for (size_t f = 0; f < MethodStats::kOwn; ++f) sum.own[f] += by_ppd[i]->end().stats.own[f];
  }
  return sum;
}

TEST(PpdMethod, GivesTheTokensOfAutoregressiveDecodingOnRealModels) {
#ifndef TANDEM_WITH_TORCH
  GTEST_SKIP() << "built without LibTorch";
#endif
  const std::vector<std::string> one_queue = {"cpu:0/1"}, two = {"cpu:1", "cpu:2"};
  for (const auto& [exit_layer, devices] : {std::pair{4, one_queue}, {6, one_queue}, {5, two}}) {
    const MethodStats sum = expect_the_tokens_of_ar(pipeline(exit_layer, devices),
                                                    "exit layer " + std::to_string(exit_layer));
    EXPECT_GT(sum.own[PpdFigures::kAdopted], 8) << "of some 24 tokens of each of 8 requests";
  }
}

// docs/reports/ppd.md, "Bytes copied": keys and values of the worker's layers for each row,
// and the hidden row of each that main takes over. At least a worker's row for each further token.
TEST(PpdMethod, CopiesAsManyBytesAsItsRowsHave) {
#ifndef TANDEM_WITH_TORCH
  GTEST_SKIP() << "built without LibTorch";
#endif
  constexpr int64_t kHidden = 320, kHeadDim = 64;  // one KV head
  for (const auto& [exit_layer, devices] :
       {std::pair{4, std::vector<std::string>{"cpu:0/1", "cpu:1"}}, {6, {"cpu:1"}}}) {
    EngineConfig config = pipeline(exit_layer, devices);
    for (ModelConfig& model : config.models) model.dtype = model.kv_dtype = DType::kFloat32;
    const auto engine = make_engine(config);
    ASSERT_NE(engine, nullptr);
    int64_t rows = 0, adopted = 0, bytes = 0;
    for (int i = 0; adopted <= 8; ++i) {  // how many workers finish in time depends on the machine
      const auto sink = testing::run(*engine, request(i, "ppd"));
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      rows += sink->end().stats.own[PpdFigures::kCopiedRows];
      bytes += sink->end().stats.own[PpdFigures::kCopiedBytes];
      adopted += sink->end().stats.own[PpdFigures::kAdopted];
    }
    const int64_t layer_bytes = 2 * kHeadDim * static_cast<int64_t>(sizeof(float));
    EXPECT_EQ(bytes, rows * (kLayers - exit_layer) * layer_bytes +
                         adopted * kHidden * static_cast<int64_t>(sizeof(float)));
    EXPECT_EQ(engine->metrics().device_copy_bytes.value(), bytes);
    EXPECT_GT(rows, adopted) << "what main sends to workers, too";
  }
}

#ifdef TANDEM_WITH_TORCH
// Heads of the demo's large model: h + factor h, so 0 changes nothing, and -1 leaves nothing.
class PpdHeads : public ::testing::Test {
 protected:
  ExtraConfig head(const std::string& name, int layer, float factor) {
    constexpr int kHidden = 320;
    std::vector<float> down(size_t{kHidden} * kHidden), up(down.size());
    for (size_t i = 0; i < kHidden; ++i) {
      down[i * kHidden + i] = 1;
      up[i * kHidden + i] = factor;
    }
    return folders_.write(
        name, {{"kind", "head"}, {"layer", layer}},
        {{"down.weight", {kHidden, kHidden}, down}, {"up.weight", {kHidden, kHidden}, up}});
  }

 private:
  test::AdapterFolders folders_{std::string(TANDEM_SOURCE_DIR) + "/models/code-large"};
};

TEST_F(PpdHeads, ReadTheEarlyLayer) {
  const ExtraConfig same = head("same", 4, 0), blind = head("blind", 4, -1),
                    third = head("third", 3, 0);
  for (const ExtraConfig& used : {same, blind}) {
    EngineConfig config = pipeline(4, {"cpu:0/1", "cpu:0/2"});
    set_setting(&config.deployments[0].methods["ppd"], "head", used.name);
    config.models[0].extras = {same, blind};
    config.models[1].extras = {third, blind, same};  // each model counts its own
    config.models[2].extras = {blind, third, same};
    const MethodStats sum = expect_the_tokens_of_ar(config, used.name);
    EXPECT_GT(sum.own[PpdFigures::kRounds], 8);
    if (used.name == "same") EXPECT_GT(sum.own[PpdFigures::kAdopted], 8);
    // All tokens are equally likely: it proposes the first ids, which are never right.
    if (used.name == "blind") {
      EXPECT_LT(8 * sum.own[PpdFigures::kFirstMatches], sum.own[PpdFigures::kRounds]);
    }
  }
  // Workers run two layers here, and propose nothing.
  EngineConfig config = pipeline(6, {"cpu:0/1"});
  config.models[0].extras = {head("sixth", 6, 0)};
  set_setting(&config.deployments[0].methods["ppd"], "head", std::string("sixth"));
  EXPECT_GT(expect_the_tokens_of_ar(config, "sixth").own[PpdFigures::kAdopted], 8);
}

// models/code-large-heads: their candidates are right far more often than those that the model's
// own output matrix gives at the same layer.
TEST_F(PpdHeads, ShippedOnesMatchMoreOften) {
  for (const int layer : {4, 6}) {
    const std::string name = "layer-" + std::to_string(layer);
    const ExtraConfig shipped{name,
                              std::string(TANDEM_SOURCE_DIR) + "/models/code-large-heads/" + name};
    double rate[2];
    for (const bool trained : {false, true}) {
      EngineConfig config = pipeline(layer, {"cpu:0/1"});
      if (trained) {
        set_setting(&config.deployments[0].methods["ppd"], "head", name);
        config.models[0].extras = {shipped};
        if (layer == 4) config.models[1].extras = {shipped};
      }
      const MethodStats sum = expect_the_tokens_of_ar(config, name);
      rate[trained] = static_cast<double>(sum.own[PpdFigures::kFirstMatches]) /
                      static_cast<double>(sum.own[PpdFigures::kRounds]);
    }
    EXPECT_GT(rate[1], rate[0] + 0.05) << name << ": " << rate[0] << " without";
  }
}

TEST_F(PpdHeads, RefusesThoseThatDoNotFit) {
  const ExtraConfig early = head("early", 4, 0), late = head("late", 6, 0);
  ExtraConfig other = head("elsewhere", 4, 0);
  other.name = "early";
  test::AdapterFolders others{std::string(TANDEM_SOURCE_DIR) + "/models/code-large"};
  const std::string sample = std::exchange(others.fingerprint, "0123456789abcdef");
  const ExtraConfig foreign = others.write("early", {{"kind", "head"}, {"layer", 4}},
                                           {{"down.weight", {1, 320}, std::vector<float>(320)},
                                            {"up.weight", {320, 1}, std::vector<float>(320)}});
  const struct {
    std::string message;
    std::function<void(EngineConfig&)> change;
  } kCases[] = {
      {"deployments[code].ppd.head: \"unknown\"; allowed: early, the heads of layer 4 among the "
       "extras of model large",
       [](EngineConfig& c) {
         set_setting(&c.deployments[0].methods["ppd"], "head", std::string("unknown"));
       }},
      {"deployments[code].ppd.head: \"late\", of layer 6; allowed: early, the heads of layer 4 "
       "among the extras of model large",
       [](EngineConfig& c) {
         set_setting(&c.deployments[0].methods["ppd"], "head", std::string("late"));
       }},
      {"deployments[code].ppd.head: \"early\"; allowed: none, the heads of layer 4 among the "
       "extras of model worker0",
       [](EngineConfig& c) { c.models[1].extras.clear(); }},
      {"deployments[code].ppd.head: " + other.path + " of model worker0; allowed: " + early.path +
           ", as the large model has it",
       [&](EngineConfig& c) { c.models[1].extras = {other}; }},
      {"deployments[code].ppd.head: \"early\"; allowed: unset without exit_layer",
       [](EngineConfig& c) { c.deployments[0].methods["ppd"] = {{"head", std::string("early")}}; }},
      {"models[large].extras[early]: " + foreign.path +
           "/adapter.json: base.fingerprint: \"0123456789abcdef\"; allowed: \"" + sample +
           "\": the model's (this adapter was made for other weights)",
       [&](EngineConfig& c) { c.models[0].extras = {foreign}; }},
      {"models[worker0].extras[late]: " + late.path +
           "/adapter.json: layer: 6; allowed: 1 to 4, the layers that are loaded",
       [&](EngineConfig& c) { c.models[1].extras = {early, late}; }},
  };
  for (const auto& c : kCases) {
    EngineConfig config = pipeline(4, {"cpu:0/1"});
    set_setting(&config.deployments[0].methods["ppd"], "head", std::string("early"));
    config.models[0].extras = {early, late};
    config.models[1].extras = {early};
    c.change(config);
    const auto engine = Engine::create(std::move(config));
    ASSERT_FALSE(engine.ok()) << c.message;
    EXPECT_EQ(engine.status().message(), c.message);
  }
}
#endif

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
      {"deployments[code].ppd.workers: \"worker0\" with device: cpu:0; allowed: a device or a "
       "device queue "
       "(cpu:0/1) other than the large model's",
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
      {"deployments[code].ppd.workers: \"unknown\"; allowed: names of models: large, worker0",
       [](EngineConfig& c) {
         set_setting(&c.deployments[0].methods["ppd"], "workers",
                     std::vector<std::string>{"unknown"});
       }},
      {"deployments[code].ppd.workers: \"large\" with layers: 8; allowed: 4, as many as the large "
       "model has above exit_layer",
       [](EngineConfig& c) {
         set_setting(&c.deployments[0].methods["ppd"], "workers",
                     std::vector<std::string>{"large"});
       }},
      {"deployments[code].ppd.workers: \"worker0\" twice; allowed: each model once",
       [](EngineConfig& c) {
         set_setting(&c.deployments[0].methods["ppd"], "workers",
                     std::vector<std::string>{"worker0", "worker0"});
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

TEST(PpdMethod, WorkersWantADeviceThatIsThere) {
  const std::string path = std::string(TANDEM_SOURCE_DIR) + "/deploy/ppd-cpu.textproto";
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  const std::string without =
      absl::StrReplaceAll(file.str(), {{"devices { name: \"cpu:0/2\" threads: 1 }\n", ""}});
  const absl::Status status = parse_deployment(without, path).status();
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::HasSubstr("models[2].device: \"cpu:0/2\"; allowed: \"cpu:0\", \"cpu:0/1\""));
}

// A worker with memory for 320 rows, and a large model with more.
TEST(PpdMethod, CandidatesAreNoMoreThanTheWorkersRows) {
  EngineConfig config = testing::fake_engine_config();
  config.devices.push_back({.queue = 1});
  ModelConfig& worker = config.models[1];
  worker.fake = config.models[0].fake;
  worker.fake->layers = 2;
  worker.device = "cpu:0/1";
  worker.kv_pages = 20;
  config.deployments = {{"pair", "big", ""}};
  config.deployments[0].methods["ppd"] = {{"exit_layer", int64_t{2}},
                                          {"workers", std::vector<std::string>{"little"}}};
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  GenerateRequest r = testing::request_for(std::vector<Token>(10, 65), 300);
  r.method = "ppd";
  r.parameters = {{"num_candidates", int64_t{11}}};
  const auto refused = testing::run(*engine, r);
  EXPECT_EQ(refused->wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused->wait().message()),
              ::testing::HasSubstr("max_new_tokens: 300; allowed: at most 299 after 10 prompt "
                                   "tokens (context of 309)"));
  r.parameters = {{"num_candidates", int64_t{10}}};
  const auto fits = testing::run(*engine, r);
  EXPECT_TRUE(fits->wait().ok()) << fits->wait();
}

// The deployments for GPUs, with CPU devices and device queues and fake models of as many layers.
TEST(PpdMethod, DeploymentsForGpusAreServed) {
  for (const std::string name : {"ppd-gpus", "ppd-one-gpu"}) {
    const std::string path = std::string(TANDEM_SOURCE_DIR) + "/deploy/" + name + ".textproto";
    std::stringstream file;
    file << std::ifstream(path).rdbuf();
    std::string text = absl::StrReplaceAll(file.str(), {{"cuda:", "cpu:"}});
    text =
        absl::StrReplaceAll(text, {{"path: \"/models/large\" layers: 10", "fake { layers: 10 }"}});
    text = absl::StrReplaceAll(text, {{"path: \"/models/large\"", "fake { layers: 40 }"}});
    auto config = parse_deployment(text, path);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto engine = make_engine(*std::move(config));
    ASSERT_NE(engine, nullptr) << name;
    GenerateRequest r = testing::request_for("text", 12);
    r.model = "large";
    r.method = "autoregressive";
    const auto plain = testing::run(*engine, r);
    r.method = "ppd";
    const auto piped = testing::run(*engine, r);
    ASSERT_TRUE(piped->wait().ok()) << piped->wait();
    EXPECT_EQ(piped->ids(), plain->ids());
    const auto& own = piped->end().stats.own;
    EXPECT_EQ(own[PpdFigures::kRounds], 11);
    EXPECT_EQ(own[PpdFigures::kWorkerLayers], 11 * 3 * 10) << "k 3, a worker's ten layers";
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
