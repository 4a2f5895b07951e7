// A model on several devices: every method gives the same tokens on each, and the deployment lists
// every replica.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "tests/engine/host/kit.h"
#include "tests/engine/host/tiny_directory.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;
using testing::run;

void add_devices(EngineConfig* config, int count) {
  while (static_cast<int>(config->devices.size()) < count) {
    DeviceConfig& d = config->devices.emplace_back();
    d.index = static_cast<int>(config->devices.size()) - 1;
    d.threads = 1;
  }
}

// Passes of the model by device.
std::map<std::string, int64_t> passes(const Engine& engine, const std::string& model) {
  std::map<std::string, int64_t> by_device;
  for (const ModelSeries& s : engine.metrics().models) {
    if (s.model != model) continue;
    for (const Counter& c : s.passes) by_device[s.device] += c.value();
  }
  return by_device;
}

bool all_grew(const std::map<std::string, int64_t>& before,
              const std::map<std::string, int64_t>& after) {
  return std::ranges::all_of(before, [&](const auto& b) { return after.at(b.first) > b.second; });
}

// "big" on cpu:0 and cpu:1, "little" on cpu:2; deployment "pair".
class Replicas : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineConfig config = testing::fake_engine_config();
    add_devices(&config, 3);
    config.models[0].replicas = {"cpu:1"};
    config.models[1].device = "cpu:2";
    for (ModelConfig& m : config.models) {
      m.fake->lost = [this](const std::string& device) {
        return lost_[static_cast<size_t>(device.back() - '0')].load();
      };
    }
    engine_ = make_engine(std::move(config));
    ASSERT_NE(engine_, nullptr);
  }

  absl::Status generate(const std::string& method, std::string* text = nullptr) {
    GenerateRequest r = testing::request_for("some text");
    r.method = method;
    const auto sink = run(*engine_, std::move(r));
    const absl::Status status = sink->wait();
    if (text) *text = sink->text();
    return status;
  }
  DeploymentInfo info() const { return *engine_->deployment("pair"); }

  std::atomic<bool> lost_[3] = {false, false, false};
  std::unique_ptr<Engine> engine_;
};

TEST_F(Replicas, AreListedOneByOne) {
  const DeploymentInfo pair = info();
  ASSERT_EQ(pair.models.size(), 3U);
  const char* const devices[] = {"cpu:0", "cpu:1", "cpu:2"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pair.models[i].role, i < 2 ? "large" : "small");
    EXPECT_EQ(pair.models[i].name, i < 2 ? "big" : "little");
    EXPECT_EQ(pair.models[i].device, devices[i]);
    EXPECT_FALSE(pair.models[i].device_lost);
  }
  EXPECT_EQ(engine_->metrics().models.size(), 3U);
}

TEST_F(Replicas, AllWarmUpAndShareTheRequests) {
  const auto warm = passes(*engine_, "big");
  EXPECT_EQ(warm.size(), 2U);
  for (const auto& [device, n] : warm) EXPECT_GT(n, 0) << device;
  // A request on an idle engine runs on the first replica.
  while (!all_grew(warm, passes(*engine_, "big"))) {
    std::vector<std::shared_ptr<Recorder>> all;
    for (int i = 0; i < 20; ++i) {
      all.push_back(std::make_shared<Recorder>());
      GenerateRequest r = testing::request_for("prompt number " + std::to_string(i), 64);
      r.method = i % 2 == 0 ? "speculative" : "autoregressive";
      engine_->submit(std::move(r), all.back());
    }
    for (const auto& sink : all) ASSERT_TRUE(sink->wait().ok());
  }
}

TEST_F(Replicas, OneThatIsLostLeavesTheOthers) {
  std::string before, after;
  ASSERT_TRUE(generate("autoregressive", &before).ok());
  lost_[0] = true;
  // Requests there end with the device. Later requests go to the other replica.
  const absl::Status struck = generate("speculative");
  EXPECT_TRUE(struck.ok() || absl::IsUnavailable(struck)) << struck;
  while (!info().models[0].device_lost) (void)generate("autoregressive");
  for (const char* method : {"autoregressive", "speculative", "ngram"}) {
    EXPECT_TRUE(generate(method, &after).ok()) << method;
    EXPECT_EQ(after, before) << method;
  }
  EXPECT_TRUE(info().available());
  EXPECT_FALSE(info().models[1].device_lost);
  lost_[1] = true;
  EXPECT_EQ(generate("autoregressive").code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(info().available());
}

TEST(ReplicasOf, DifferentMemoryHaveTheContextOfTheSmallest) {
  EngineConfig config = testing::fake_engine_config();
  add_devices(&config, 2);
  config.models[0].replicas = {"cpu:1"};
  config.models[0].kv_pages = config.models[1].kv_pages = 0;
  config.devices[1].memory_bytes = 16 * 1024 * 16;  // less than the context
  const auto engine = make_engine(std::move(config));
  ASSERT_NE(engine, nullptr);
  double least = 1e9;
  for (const ModelSeries& s : engine->metrics().models) {
    if (s.model == "big") least = std::min(least, s.kv_pages_total.value());
  }
  EXPECT_EQ(engine->deployment("pair")->context_length,
            std::min<int64_t>(512, static_cast<int64_t>(least) * 16));
}

#ifdef TANDEM_WITH_TORCH
// Transformers on two devices, and workers on a device queue of each.
class ReplicatedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_tiny_model(large_.path(), 1);
    EngineConfig config;
    for (const int index : {0, 1}) {
      for (const int device_queue : {0, 1}) {
        DeviceConfig& d = config.devices.emplace_back();
        d.index = index;
        d.queue = device_queue;
        d.threads = 1;
        d.memory_bytes = 64 << 20;
      }
    }
    const auto add = [&](const std::string& name, const std::string& path,
                         const std::string& device, const std::string& replica) -> ModelConfig& {
      ModelConfig& model = config.models.emplace_back();
      model.name = name;
      model.path = path;
      model.dtype = DType::kFloat64;
      model.device = device;
      model.replicas = {replica};
      return model;
    };
    add("large", large_.path(), "cpu:0", "cpu:1");
    add("near", large_.path(), "cpu:1", "cpu:0").dtype = DType::kInt8;
    add("worker", large_.path(), "cpu:0/1", "cpu:1/1").layers = 3;
    DeploymentConfig& d = config.deployments.emplace_back();
    d = {"pair", "large", "near"};
    d.methods["ppd"] = {{"exit_layer", 3}, {"workers", std::vector<std::string>{"worker"}}};
    engine_ = make_engine(std::move(config));
    ASSERT_NE(engine_, nullptr);
  }

  // Each method's answers to the same prompts, all at once.
  void run_all() {
    const char* const methods[] = {"autoregressive", "speculative", "ngram", "ppd", "bild"};
    constexpr int kEach = 12;
    std::vector<std::vector<std::shared_ptr<Recorder>>> sent(std::size(methods));
    for (int i = 0; i < kEach; ++i) {
      std::vector<Token> prompt(static_cast<size_t>(5 + i));
      for (size_t t = 0; t < prompt.size(); ++t) {
        prompt[t] = static_cast<Token>((t * 11 + static_cast<size_t>(i) * 5) % 64);
      }
      for (size_t m = 0; m < std::size(methods); ++m) {
        GenerateRequest r = testing::request_for(prompt, 20);
        r.method = methods[m];
        const bool draws = i % 2 == 1;
        if (draws) {
          r.sampling.temperature = 0.8;
          r.sampling.seed = static_cast<uint64_t>(i);
        }
        if (r.method == "bild") {  // so that it is EXACT
          r.parameters = {{"rollback_threshold", 0.69}, {"fallback_threshold", draws ? 1.5 : 0.1}};
        }
        sent[m].push_back(std::make_shared<Recorder>());
        engine_->submit(std::move(r), sent[m].back());
      }
    }
    for (size_t m = 0; m < std::size(methods); ++m) {
      for (size_t i = 0; i < kEach; ++i) {
        ASSERT_TRUE(sent[m][i]->wait().ok()) << methods[m] << ": " << sent[m][i]->wait();
        EXPECT_EQ(sent[m][i]->ids(), sent[0][i]->ids()) << methods[m] << " " << i;
      }
    }
  }

  const test::TempDir large_;
  std::unique_ptr<Engine> engine_;
};

TEST(ReplicasOf, DevicesThatAreNotThereAreRefused) {
  const test::TempDir directory;
  test::write_tiny_model(directory.path(), 1);
  EngineConfig config = testing::real_engine_config("m", directory.path(), DType::kAuto);
  config.models[0].device = "cuda:200";
  config.models[0].replicas = {"cuda:201"};
  config.devices = {{.kind = DeviceKind::kCuda, .index = 200},
                    {.kind = DeviceKind::kCuda, .index = 201}};
  const auto engine = Engine::create(std::move(config));
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine.status().message().substr(0, 26), "device: cuda:200; allowed:");
}

TEST_F(ReplicatedWeights, EveryMethodGivesAutoregressiveTokens) {
  std::map<std::string, std::map<std::string, int64_t>> warm;
  for (const char* model : {"large", "near", "worker"}) warm[model] = passes(*engine_, model);
  const auto all_ran = [&] {
    return std::ranges::all_of(
        warm, [&](const auto& m) { return all_grew(m.second, passes(*engine_, m.first)); });
  };
  do {
    run_all();
  } while (!all_ran() && !HasFailure());
}
#endif

}  // namespace
}  // namespace tandem
