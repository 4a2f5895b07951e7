// Deployments that are loaded, replaced and unloaded while an engine runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_engine;
using testing::Recorder;
using testing::run;

constexpr char kModelText[] = "def function(x): return";
constexpr int64_t kModelPages = 40;  // of each model
constexpr int64_t kModelPageBytes = 384;
constexpr int kMostModels = 4;  // models that fit into the memory of the device

GenerateRequest request_to(const std::string& model, int tokens = 24) {
  GenerateRequest r = testing::request_for(std::string(kModelText), tokens);
  r.model = model;
  r.method = kAutoregressive;
  return r;
}

// What a fake model of this seed answers.
std::vector<Token> seed_answer(uint64_t seed, int tokens = 24) {
  std::vector<Token> prompt;
  for (const char c : std::string(kModelText)) prompt.push_back(c);
  return fake::greedy(testing::fake_model(seed), prompt, tokens);
}

ModelConfig model_of(const std::string& name, uint64_t seed) {
  ModelConfig m;
  m.name = name;
  m.fake = testing::fake_model(seed);
  m.kv_pages = kModelPages;
  return m;
}

// A deployment of one new model.
Engine::DeploymentLoad load_of(const std::string& name, const std::string& model_name,
                               uint64_t seed, bool replace = false) {
  return {.models = {model_of(model_name, seed)},
          .deployment = {name, model_name, ""},
          .replace = replace};
}

std::vector<std::string> deployment_names(const Engine& engine) {
  std::vector<std::string> names;
  for (const DeploymentInfo& d : engine.deployments()) names.push_back(d.name);
  return names;
}

std::vector<std::string> model_names(const Engine& engine) {
  std::vector<std::string> names;
  for (const ModelConfig& m : engine.loaded_models()) names.push_back(m.name);
  return names;
}

std::shared_ptr<Recorder> begin_request(Engine& engine, const GenerateRequest& request,
                                        RequestId* id = nullptr) {
  const auto sink = std::make_shared<Recorder>();
  const RequestId of = engine.submit(request, sink);
  if (id != nullptr) *id = of;
  return sink;
}

// Waits for a state that other threads bring about. Fails if they do not.
void wait_until(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::yield();
  }
}

// Two fake models in the deployment "pair", of seeds 1 and 2.
class DeploymentLoads : public ::testing::Test {
 protected:
  DeploymentLoads() {
    config_.devices[0].memory_bytes = kMostModels * kModelPages * kModelPageBytes;
    for (ModelConfig& m : config_.models) m.kv_pages = kModelPages;
  }

  EngineConfig config_ = testing::fake_engine_config();
};

TEST_F(DeploymentLoads, ALoadedOneServesLikeThoseOfTheConfiguration) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(run(*engine, request_to("late"))->wait().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(engine->load_deployment(load_of("late", "m", 7)).ok());
  EXPECT_THAT(deployment_names(*engine), ElementsAre("pair", "late"));
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little", "m"));
  EXPECT_EQ(run(*engine, request_to("late"))->ids(), seed_answer(7));
  EXPECT_EQ(run(*engine, request_to("pair"))->ids(), seed_answer(1));
  EXPECT_EQ(engine->metrics().models.size(), 3U);
  EXPECT_GT(engine->metrics().series.size(), 0U);

  ASSERT_TRUE(engine->unload_deployment("late", {}).ok());
  EXPECT_EQ(run(*engine, request_to("late"))->wait().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(deployment_names(*engine), ElementsAre("pair"));
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little"));
  EXPECT_EQ(engine->metrics().models.size(), 2U);
  for (const Series& s : engine->metrics().series) EXPECT_EQ(s.model, "pair");
  EXPECT_EQ(run(*engine, request_to("pair"))->ids(), seed_answer(1));
  const absl::Status again = engine->unload_deployment("late", {});
  EXPECT_EQ(again.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(again.message()), HasSubstr("known: \"pair\""));
}

TEST_F(DeploymentLoads, ModelsGoWithTheirLastDeployment) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  Engine::DeploymentLoad pair{.models = {model_of("draft", 3)},
                              .deployment = {"other", "big", "draft"}};
  ASSERT_TRUE(engine->load_deployment(pair).ok());
  GenerateRequest drafted = request_to("other");
  drafted.method = "speculative";
  EXPECT_EQ(run(*engine, drafted)->ids(), seed_answer(1));
  ASSERT_TRUE(engine->unload_deployment("pair", {}).ok());
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "draft"));
  EXPECT_EQ(run(*engine, drafted)->ids(), seed_answer(1));
  // A definition of a loaded model that is the same is shared.
  ASSERT_TRUE(engine->load_deployment(load_of("third", "big", 1)).ok());
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "draft"));
  ASSERT_TRUE(engine->unload_deployment("other", {}).ok());
  EXPECT_THAT(model_names(*engine), ElementsAre("big"));
  ASSERT_TRUE(engine->unload_deployment("third", {}).ok());
  EXPECT_THAT(model_names(*engine), IsEmpty());
  EXPECT_THAT(deployment_names(*engine), IsEmpty());
  EXPECT_EQ(engine->metrics().models.size(), 0U);
  ASSERT_TRUE(engine->load_deployment(load_of("pair", "big", 5)).ok());
  EXPECT_EQ(run(*engine, request_to("pair"))->ids(), seed_answer(5));
}

TEST_F(DeploymentLoads, ManyTimesUnderTrafficNothingLeaksAndNoRequestIsLost) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const size_t series = engine->metrics().series.size();
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&] {
      while (!stop.load()) {
        GenerateRequest drafted = request_to("pair", 60);
        drafted.method = "speculative";  // it keeps the times of its models
        const auto sink = run(*engine, drafted);
        EXPECT_TRUE(sink->wait().ok()) << sink->wait();
        EXPECT_EQ(sink->ids(), seed_answer(1, 60));
        ++answered;
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    // The memory suffices for two of them at a time.
    const auto seed = static_cast<uint64_t>(10 + i);
    const std::string name = absl::StrCat("late-", i % 3);
    const absl::Status loaded =
        engine->load_deployment(load_of(name, absl::StrCat("m", i % 2), seed));
    ASSERT_TRUE(loaded.ok()) << loaded;
    const auto first = begin_request(*engine, request_to(name)),
               second = begin_request(*engine, request_to(name));
    const absl::Status unloaded = engine->unload_deployment(name, {});
    ASSERT_TRUE(unloaded.ok()) << unloaded;
    ASSERT_TRUE(first->ended() && second->ended());
    EXPECT_TRUE(first->wait().ok()) << first->wait();
    EXPECT_EQ(first->ids(), seed_answer(seed));
    EXPECT_EQ(second->ids(), seed_answer(seed));
  }
  stop.store(true);
  for (std::thread& t : clients) t.join();
  EXPECT_GT(answered.load(), 0);
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little"));
  EXPECT_THAT(deployment_names(*engine), ElementsAre("pair"));
  EXPECT_EQ(engine->deployment_states().size(), 1U);
  EXPECT_EQ(engine->metrics().models.size(), 2U);
  EXPECT_EQ(engine->metrics().series.size(), series);
  wait_until([&] { return engine->live_requests() == 0; });
}

TEST_F(DeploymentLoads, AReplacedOneEndsItsRequests) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  constexpr int kLong = 200;
  Engine::DeploymentLoad first = load_of("late", "m1", 7);
  first.models[0].fake->pass_seconds = 0.005;
  ASSERT_TRUE(engine->load_deployment(first).ok());
  RequestId id = 0;
  const auto old = begin_request(*engine, request_to("late", kLong), &id);
  old->wait_for_tokens(1);
  engine->pause(id);  // it is still open below
  ASSERT_TRUE(engine->load_deployment(load_of("late", "m2", 9, /*replace=*/true)).ok());
  EXPECT_THAT(deployment_names(*engine), ElementsAre("pair", "late"));
  const auto states = engine->deployment_states();
  ASSERT_EQ(states.size(), 3U);
  EXPECT_FALSE(states[1].draining);
  EXPECT_TRUE(states[2].draining);
  EXPECT_EQ(states[2].open_requests, 1);
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little", "m1", "m2"));
  EXPECT_EQ(run(*engine, request_to("late"))->ids(), seed_answer(9));
  engine->resume(id);
  ASSERT_TRUE(old->wait().ok()) << old->wait();
  EXPECT_EQ(old->ids(), seed_answer(7, kLong));
  wait_until(
      [&] { return model_names(*engine) == std::vector<std::string>{"big", "little", "m2"}; });
  EXPECT_EQ(run(*engine, request_to("late"))->ids(), seed_answer(9));
}

TEST_F(DeploymentLoads, ReplacedUnderTrafficEachRequestEndsWithOneOfThem) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->load_deployment(load_of("late", "m0", 10)).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> newest{0};
  std::thread client([&] {
    while (!stop.load()) {
      const int before = newest.load();
      const auto sink = run(*engine, request_to("late"));
      ASSERT_TRUE(sink->wait().ok()) << sink->wait();
      bool known = false;
      for (int i = before; i <= newest.load() + 1; ++i) {
        known |= sink->ids() == seed_answer(static_cast<uint64_t>(10 + i));
      }
      EXPECT_TRUE(known);
    }
  });
  for (int i = 1; i <= 20; ++i) {
    // The model of the last but one is gone.
    wait_until([&] { return model_names(*engine).size() == 3; });
    const absl::Status status = engine->load_deployment(
        load_of("late", absl::StrCat("m", i), static_cast<uint64_t>(10 + i), /*replace=*/true));
    ASSERT_TRUE(status.ok()) << status;
    newest.store(i);
  }
  stop.store(true);
  client.join();
  EXPECT_EQ(run(*engine, request_to("late"))->ids(), seed_answer(30));
  wait_until([&] { return model_names(*engine).size() == 3; });
}

TEST_F(DeploymentLoads, RequestsThatAreLeftAfterTheLimitEnd) {
  config_.limits.max_running = 1;
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  Engine::DeploymentLoad load = load_of("late", "m", 7);
  load.models[0].fake->pass_seconds = 0.01;
  ASSERT_TRUE(engine->load_deployment(load).ok());
  RequestId id = 0;
  const auto running = begin_request(*engine, request_to("late", 400), &id);
  running->wait_for_tokens(1);
  engine->pause(id);
  const auto queued = begin_request(*engine, request_to("late", 400));
  bool removed = false;
  ASSERT_TRUE(engine
                  ->unload_deployment("late", Duration(0),
                                      [&] {
                                        removed = true;
                                        EXPECT_THAT(deployment_names(*engine), ElementsAre("pair"));
                                        EXPECT_FALSE(running->ended());
                                      })
                  .ok());
  EXPECT_TRUE(removed);
  for (const auto& sink : {running, queued}) {
    ASSERT_TRUE(sink->ended());
    EXPECT_EQ(sink->wait().code(), absl::StatusCode::kUnavailable) << sink->wait();
    EXPECT_THAT(std::string(sink->wait().message()), HasSubstr("\"late\" is being unloaded"));
  }
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little"));
  EXPECT_EQ(run(*engine, request_to("pair"))->ids(), seed_answer(1));
}

TEST_F(DeploymentLoads, TooLittleMemoryIsRefusedWithTheFigures) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  Engine::DeploymentLoad large = load_of("late", "m", 7);
  large.models[0].kv_pages = 2 * kModelPages + 1;
  const absl::Status refused = engine->load_deployment(large);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            absl::StrCat("device cpu:0 (other models have ", 2 * kModelPages * kModelPageBytes,
                         " bytes): kv_pages of model m: 81 of 384 bytes; allowed: at most 80 with "
                         "memory_bytes: ",
                         2 * kModelPages * kModelPageBytes));
  EXPECT_THAT(deployment_names(*engine), ElementsAre("pair"));
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little"));
  large.models[0].kv_pages = 2 * kModelPages;
  ASSERT_TRUE(engine->load_deployment(large).ok());
  EXPECT_EQ(engine->load_deployment(load_of("more", "n", 8)).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(engine->unload_deployment("late", {}).ok());
  EXPECT_TRUE(engine->load_deployment(load_of("more", "n", 8)).ok());
}

TEST_F(DeploymentLoads, AFailedLoadChangesNothing) {
  config_.devices.push_back({.index = 1, .memory_bytes = kModelPages * kModelPageBytes});
  ModelConfig there = model_of("there", 4);
  there.device = "cpu:1";
  config_.models.push_back(there);
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const auto refused = [&](const Engine::DeploymentLoad& load, absl::StatusCode code) {
    const absl::Status status = engine->load_deployment(load);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(deployment_names(*engine), ElementsAre("pair"));
    EXPECT_THAT(model_names(*engine), ElementsAre("big", "little", "there"));
    EXPECT_EQ(engine->metrics().models.size(), 3U);
    return std::string(status.message());
  };
  using enum absl::StatusCode;
  EXPECT_EQ(refused(load_of("pair", "m", 7), kAlreadyExists),
            "deployment.name: \"pair\", which is loaded; allowed: another name, or "
            "ReplaceDeployment");
  EXPECT_EQ(refused(load_of("late", "big", 7), kAlreadyExists),
            "models: \"big\", which is loaded; allowed: the same definition, or another name");
  EXPECT_EQ(refused(load_of("late", "m", 7, /*replace=*/true), kNotFound),
            "deployment: \"late\"; known: \"pair\"");
  EXPECT_THAT(refused(load_of("a b", "m", 7), kInvalidArgument), HasSubstr("deployment.name"));
  EXPECT_EQ(refused({.models = {}, .deployment = {"late", "m", ""}}, kInvalidArgument),
            "deployment.large: \"m\"; allowed: a model of the request, or one that is loaded");
  Engine::DeploymentLoad sharded = load_of("late", "m", 7);
  sharded.models[0].shards = {{"cpu:0", 1}, {"cpu:1", 3}};
  EXPECT_THAT(refused(sharded, kInvalidArgument), HasSubstr("models[m].shards"));
  Engine::DeploymentLoad weights = load_of("late", "m", 7);
  weights.models[0].fake.reset();
  weights.models[0].path = "/nonexistent";
  EXPECT_THAT(refused(weights, kInvalidArgument), HasSubstr("allowed: one kind"));
  // The first model is loaded when the second does not fit.
  Engine::DeploymentLoad two = load_of("late", "m", 7);
  two.models.push_back(model_of("n", 8));
  two.models[1].device = "cpu:1";
  two.deployment.small = "n";
  EXPECT_THAT(refused(two, kResourceExhausted), HasSubstr("device cpu:1"));
  // Both are loaded and run when the method turns out to be wrong.
  Engine::DeploymentLoad wrong = load_of("late", "m", 7);
  wrong.deployment.methods["bild"] = {{"early_exit_layer", 4}};
  EXPECT_THAT(refused(wrong, kInvalidArgument), HasSubstr("early_exit_layer"));
  // "little" was loaded without the hidden states of its rows.
  Engine::DeploymentLoad workers{.deployment = {"late", "big", ""}};
  workers.deployment.methods["ppd"] = {{"exit_layer", int64_t{2}},
                                       {"workers", std::vector<std::string>{"little"}}};
  EXPECT_THAT(refused(workers, kFailedPrecondition), HasSubstr("model little"));
  ASSERT_TRUE(engine->load_deployment(load_of("late", "m", 7)).ok());
  EXPECT_EQ(run(*engine, request_to("late"))->ids(), seed_answer(7));
}

TEST_F(DeploymentLoads, CallsAtOnceDoNotDisturbEachOther) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  std::atomic<int> loaded{0}, taken{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&, c] {
      // Two callers each want one of two names.
      const absl::Status status = engine->load_deployment(load_of(
          absl::StrCat("late-", c / 2), absl::StrCat("m", c / 2), static_cast<uint64_t>(c)));
      if (status.ok()) ++loaded;
      if (absl::IsAlreadyExists(status)) ++taken;
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(loaded.load(), 2);
  EXPECT_EQ(taken.load(), 2);
  EXPECT_EQ(model_names(*engine).size(), 4U);
  callers.clear();
  std::atomic<int> unloaded{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&, c] {
      if (engine->unload_deployment(absl::StrCat("late-", c / 2), {}).ok()) ++unloaded;
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(unloaded.load(), 2);
  EXPECT_THAT(model_names(*engine), ElementsAre("big", "little"));
}

TEST_F(DeploymentLoads, AdaptersGoWithTheirDeployment) {
  const test::TempDir folder;
  const std::string path = folder.write("sql", std::string(100, 'w'));
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const double weights = engine->metrics().models[0].weight_bytes.value();
  ASSERT_TRUE(engine->load_deployment({.deployment = {"late", "big", ""}}).ok());
  ASSERT_TRUE(engine->load_adapter({.model = "late", .name = "sql", .path = path}).ok());
  EXPECT_EQ(engine->load_deployment(load_of("sql", "m", 7)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->metrics().models[0].weight_bytes.value(), weights + 100);
  ASSERT_TRUE(run(*engine, request_to("late:sql"))->wait().ok());
  ASSERT_TRUE(engine->unload_deployment("late", {}).ok());
  EXPECT_EQ(engine->metrics().models[0].weight_bytes.value(), weights);
  EXPECT_TRUE(engine->metrics().adapters.all().empty());
  EXPECT_EQ(run(*engine, request_to("late:sql"))->wait().code(), absl::StatusCode::kNotFound);
}

TEST_F(DeploymentLoads, ADrainingEngineLoadsNothing) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->load_deployment(load_of("late", "m", 7)).ok());
  engine->start_drain();
  EXPECT_EQ(engine->load_deployment(load_of("more", "n", 8)).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tandem
