// Idle deployments that are unloaded, and loaded again by the next request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Recorder;
using testing::run;

constexpr char kIdleText[] = "def function(x): return";
constexpr int64_t kIdlePages = 40;  // of each model
constexpr int64_t kIdlePageBytes = 384;
constexpr std::chrono::seconds kIdle{10};

GenerateRequest idle_request(const std::string& model = "pair") {
  GenerateRequest r = testing::request_for(std::string(kIdleText));
  r.model = model;
  r.method = kAutoregressive;
  return r;
}

// What a fake model of this seed answers.
std::vector<Token> idle_answer(uint64_t seed) {
  std::vector<Token> prompt;
  for (const char c : std::string(kIdleText)) prompt.push_back(c);
  return fake::greedy(testing::fake_model(seed), prompt, 24);
}

Engine::DeploymentLoad idle_load(const std::string& name, const std::string& model, uint64_t seed) {
  ModelConfig m;
  m.name = model;
  m.fake = testing::fake_model(seed);
  m.kv_pages = kIdlePages;
  Engine::DeploymentLoad load{.models = {m}, .deployment = {name, model, ""}};
  load.deployment.unload_after_idle_seconds = kIdle.count();
  return load;
}

// Two models in the deployment "pair", which is unloaded after kIdle of virtual time. Memory for
// two models more. A load can be stopped in its middle.
class IdleTest : public ::testing::Test {
 protected:
  IdleTest() {
    config_.devices[0].memory_bytes = 4 * kIdlePages * kIdlePageBytes;
    for (ModelConfig& m : config_.models) m.kv_pages = kIdlePages;
    config_.deployments[0].unload_after_idle_seconds = kIdle.count();
  }
  ~IdleTest() override {
    if (stopped_) go_on();
    engine_.reset();
  }

  void start() {
    auto engine = Engine::create(
        config_,
        [this](absl::string_view line) {
          if (stops_ && absl::StrContains(line, ": fake model on ")) gate_.get_future().wait();
        },
        nullptr, nullptr, &clock_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  // The next load waits in its middle until go_on().
  void stop_next_load() { stops_ = stopped_ = true; }
  void go_on() {
    stops_ = stopped_ = false;
    gate_.set_value();
  }

  // Waits for a state that other threads bring about. Fails if they do not.
  static void wait_until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::yield();
    }
  }
  std::vector<std::string> models() const {
    std::vector<std::string> names;
    for (const ModelConfig& m : engine_->loaded_models()) names.push_back(m.name);
    return names;
  }
  DeploymentState state(const std::string& name = "pair") const {
    for (const DeploymentState& d : engine_->deployment_states()) {
      if (d.info.name == name && !d.draining) return d;
    }
    return {};
  }
  void wait_for_open(int64_t requests, const std::string& name = "pair") const {
    wait_until([&] { return state(name).open_requests == requests; });
  }
  // A request holds its deployment a little longer than its client waits.
  void unload(const std::string& name = "pair") {
    wait_for_open(0, name);
    clock_.advance(kIdle);
    EXPECT_THAT(engine_->unload_idle().names, ElementsAre(name));
  }
  void unload_all() {
    unload();
    wait_until([&] { return models().empty(); });
  }
  std::shared_ptr<Recorder> begin(const GenerateRequest& request, RequestId* id = nullptr) {
    const auto sink = std::make_shared<Recorder>();
    const RequestId of = engine_->submit(request, sink);
    if (id != nullptr) *id = of;
    return sink;
  }

  VirtualClock clock_;
  EngineConfig config_ = testing::fake_engine_config();
  std::unique_ptr<Engine> engine_;

 private:
  std::atomic<bool> stops_{false};
  bool stopped_ = false;
  std::promise<void> gate_;
};

TEST_F(IdleTest, IsUnloadedAfterItsLastRequestAndLoadedByTheNext) {
  start();
  const DeploymentInfo before = engine_->deployments()[0];
  EXPECT_FALSE(before.unloaded);
  EXPECT_EQ(engine_->unload_idle().next, clock_.now() + kIdle);
  clock_.advance(std::chrono::seconds(5));
  EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(1));
  wait_for_open(0);
  const TimePoint ended = clock_.now();
  clock_.advance(kIdle - std::chrono::nanoseconds(1));
  const Engine::IdleUnloads early = engine_->unload_idle();
  EXPECT_THAT(early.names, IsEmpty());
  EXPECT_EQ(early.next, ended + kIdle);
  clock_.advance(std::chrono::nanoseconds(1));
  EXPECT_THAT(engine_->unload_idle().names, ElementsAre("pair"));
  wait_until([&] { return models().empty(); });
  EXPECT_EQ(engine_->metrics().models.size(), 0U);

  ASSERT_EQ(engine_->deployments().size(), 1U);
  const DeploymentInfo unloaded = engine_->deployment("pair").value();
  EXPECT_TRUE(unloaded.unloaded);
  EXPECT_TRUE(unloaded.available());
  EXPECT_EQ(unloaded.methods.size(), before.methods.size());
  EXPECT_EQ(unloaded.models.size(), 2U);
  EXPECT_EQ(unloaded.context_length, before.context_length);
  EXPECT_EQ(engine_->deployment_states().size(), 1U);
  EXPECT_EQ(state().idle_unloads, 1);
  clock_.advance(10 * kIdle);
  EXPECT_THAT(engine_->unload_idle().names, IsEmpty());

  GenerateRequest drafted = idle_request();
  drafted.method = "speculative";
  EXPECT_EQ(run(*engine_, drafted)->ids(), idle_answer(1));
  EXPECT_FALSE(engine_->deployment("pair")->unloaded);
  EXPECT_THAT(models(), ElementsAre("big", "little"));
  EXPECT_EQ(state().loads, 2);
  EXPECT_EQ(state().failed_loads, 0);
  EXPECT_GT(engine_->metrics().series.size(), 0U);
  unload_all();
  EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(1));
}

TEST_F(IdleTest, AnOpenRequestKeepsIt) {
  config_.models[0].fake->pass_seconds = 0.001;
  start();
  RequestId id = 0;
  const auto sink = begin(idle_request(), &id);
  sink->wait_for_tokens(1);
  engine_->pause(id);
  clock_.advance(100 * kIdle);
  const Engine::IdleUnloads none = engine_->unload_idle();
  EXPECT_THAT(none.names, IsEmpty());
  EXPECT_EQ(none.next, clock_.now() + kIdle);
  engine_->resume(id);
  EXPECT_TRUE(sink->wait().ok());
  wait_for_open(0);
  EXPECT_THAT(engine_->unload_idle().names, IsEmpty()) << "it ended now";
  unload();
}

TEST_F(IdleTest, WithoutTheSettingItStays) {
  config_.deployments[0].unload_after_idle_seconds = 0;
  start();
  clock_.advance(std::chrono::hours(1000));
  const Engine::IdleUnloads none = engine_->unload_idle();
  EXPECT_THAT(none.names, IsEmpty());
  EXPECT_EQ(none.next, kNever);
}

TEST_F(IdleTest, RequestsAtOnceWaitForOneLoad) {
  start();
  unload_all();
  stop_next_load();
  std::vector<std::thread> clients;
  std::vector<std::shared_ptr<Recorder>> sinks(12);
  for (size_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (size_t i = 0; i < 3; ++i) sinks[3 * c + i] = begin(idle_request());
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(state().open_requests, 12);
  EXPECT_EQ(engine_->metrics().requests_tokenizing.value(), 12);
  for (const auto& sink : sinks) EXPECT_FALSE(sink->ended());
  EXPECT_TRUE(engine_->deployment("pair")->unloaded);
  go_on();
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->wait().ok()) << sink->wait();
    EXPECT_EQ(sink->ids(), idle_answer(1));
  }
  EXPECT_EQ(state().loads, 2);
}

TEST_F(IdleTest, AllKindsOfRequestsWait) {
  start();
  unload_all();
  std::promise<absl::StatusOr<std::vector<Token>>> tokens;
  engine_->tokenize({.model = "pair", .prompt = Prompt(std::string("ab"))},
                    [&](absl::StatusOr<std::vector<Token>> got) { tokens.set_value(got); });
  EXPECT_EQ(tokens.get_future().get().value(), (std::vector<Token>{'a', 'b'}));
  unload_all();
  std::promise<absl::StatusOr<ScoreResult>> score;
  ScoreRequest scored;
  scored.model = "pair";
  scored.prompt = Prompt(std::string("ab"));
  scored.continuation = "c";
  engine_->score(scored, [&](absl::StatusOr<ScoreResult> got) { score.set_value(std::move(got)); });
  EXPECT_TRUE(score.get_future().get().ok());
  unload_all();
  // The texts of tokens are asked for before the tokenizer is there.
  const auto bytes = engine_->token_bytes(idle_request());
  EXPECT_EQ(bytes('x'), "");
  EXPECT_TRUE(run(*engine_, idle_request())->wait().ok());
  EXPECT_EQ(bytes('x'), "x");
  EXPECT_EQ(state().loads, 4);
}

TEST_F(IdleTest, CancellationDeadlinesAndLimitsApplyToWaitingRequests) {
  config_.limits.max_waiting = 3;
  config_.limits.max_waiting_per_client = 3;
  start();
  unload_all();
  stop_next_load();
  RequestId id = 0;
  const auto cancelled = begin(idle_request(), &id);
  const auto patient = begin(idle_request());
  GenerateRequest hurried = idle_request();
  hurried.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  const auto late = begin(hurried);
  EXPECT_EQ(late->wait().code(), absl::StatusCode::kDeadlineExceeded) << late->wait();
  EXPECT_THAT(std::string(late->wait().message()), HasSubstr("its model is being loaded"));
  wait_for_open(2);
  const auto third = begin(idle_request()), fourth = begin(idle_request());
  EXPECT_EQ(fourth->wait().code(), absl::StatusCode::kResourceExhausted) << fourth->wait();
  engine_->cancel(id);
  EXPECT_EQ(cancelled->wait().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(patient->ended() || third->ended());
  go_on();
  EXPECT_TRUE(patient->wait().ok()) << patient->wait();
  EXPECT_EQ(patient->ids(), idle_answer(1));
  EXPECT_TRUE(third->wait().ok()) << third->wait();
  EXPECT_EQ(third->ids(), idle_answer(1));
  // Requests that no longer wait have not kept it open.
  unload_all();
}

TEST_F(IdleTest, AFailedLoadEndsTheWaitingRequestsAndTheNextTriesAgain) {
  start();
  unload_all();
  Engine::DeploymentLoad large = idle_load("large", "m", 7);
  large.models[0].kv_pages = 3 * kIdlePages;
  ASSERT_TRUE(engine_->load_deployment(large).ok());
  for (int i = 1; i <= 2; ++i) {
    const auto sink = run(*engine_, idle_request());
    EXPECT_EQ(sink->wait().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(sink->wait().message()),
                HasSubstr("model \"pair\" could not be loaded: device cpu:0 (other models have"));
    EXPECT_TRUE(sink->wait().GetPayload(kRetryPayload).has_value());
    EXPECT_TRUE(engine_->deployment("pair")->unloaded);
    EXPECT_EQ(state().failed_loads, i);
    EXPECT_THAT(models(), ElementsAre("m"));
  }
  ASSERT_TRUE(engine_->unload_deployment("large", {}).ok());
  EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(1));
  EXPECT_EQ(state().loads, 2);
}

// Each model gets the pages that it had, and not all that are free.
TEST_F(IdleTest, ModelsWithoutPagesGetThoseThatTheyHad) {
  for (ModelConfig& m : config_.models) m.kv_pages = 0;
  config_.deployments = {{"pair", "big", ""}, {"other", "little", ""}};
  for (DeploymentConfig& d : config_.deployments) d.unload_after_idle_seconds = kIdle.count();
  start();
  const double pages = engine_->metrics().models[0].kv_bytes.value();
  clock_.advance(kIdle);
  EXPECT_THAT(engine_->unload_idle().names, ElementsAre("pair", "other"));
  wait_until([&] { return models().empty(); });
  EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(1));
  EXPECT_EQ(run(*engine_, idle_request("other"))->ids(), idle_answer(2));
  EXPECT_EQ(engine_->metrics().models[0].kv_bytes.value(), pages);
  EXPECT_EQ(engine_->loaded_models()[0].kv_pages, 0) << "as it was defined";
}

TEST_F(IdleTest, SharedModelsStayWithOtherDeployments) {
  config_.deployments.push_back({"alone", "big", ""});
  start();
  unload();
  wait_until([&] { return models().size() == 1; });
  EXPECT_THAT(models(), ElementsAre("big"));
  EXPECT_EQ(run(*engine_, idle_request("alone"))->ids(), idle_answer(1));
  GenerateRequest drafted = idle_request();
  drafted.method = "speculative";
  EXPECT_EQ(run(*engine_, drafted)->ids(), idle_answer(1));
  EXPECT_THAT(models(), ElementsAre("big", "little"));
}

TEST_F(IdleTest, AWaitingRequestEndsWhenACallUnloadsTheDeployment) {
  start();
  unload_all();
  stop_next_load();
  const auto sink = begin(idle_request());
  std::promise<void> removed;
  std::thread caller([&] {
    EXPECT_TRUE(engine_->unload_deployment("pair", {}, [&] { removed.set_value(); }).ok());
  });
  removed.get_future().wait();
  EXPECT_EQ(sink->wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(sink->wait().message()), HasSubstr("\"pair\" is being unloaded"));
  go_on();
  caller.join();
  EXPECT_THAT(models(), IsEmpty());
  EXPECT_EQ(run(*engine_, idle_request())->wait().code(), absl::StatusCode::kNotFound);
}

TEST_F(IdleTest, ACallReplacesAnUnloadedDeployment) {
  start();
  unload_all();
  Engine::DeploymentLoad other = idle_load("other", "big", 9);
  const absl::Status taken = engine_->load_deployment(other);
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()),
              HasSubstr("models: \"big\", which is loaded; allowed: the same definition as in the "
                        "unloaded deployment \"pair\", or another name"));
  EXPECT_EQ(engine_->load_deployment(idle_load("pair", "m", 9)).code(),
            absl::StatusCode::kAlreadyExists);
  Engine::DeploymentLoad next = idle_load("pair", "big", 9);
  next.replace = true;
  ASSERT_TRUE(engine_->load_deployment(next).ok());
  EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(9));
  EXPECT_EQ(engine_->deployment_states().size(), 1U);
  unload_all();
  EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(9));
}

TEST_F(IdleTest, StoppingEndsWaitingRequests) {
  start();
  unload_all();
  stop_next_load();
  const auto sink = begin(idle_request());
  engine_->shutdown(std::chrono::steady_clock::now());
  EXPECT_EQ(sink->wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(engine_->unload_idle().names, IsEmpty());
  go_on();
  engine_.reset();
}

TEST_F(IdleTest, AcceptedRequestsAreAnsweredWhileTheServerDrains) {
  start();
  unload_all();
  stop_next_load();
  const auto sink = begin(idle_request());
  engine_->start_drain();
  go_on();
  EXPECT_TRUE(sink->wait().ok()) << sink->wait();
  EXPECT_EQ(sink->ids(), idle_answer(1));
}

TEST_F(IdleTest, AdaptersOfTheConfigurationComeBackAndAddedOnesKeepIt) {
  config_.models[0].loras = {{"fixed", ""}};
  config_.deployments[0].adapters = {{"fixed", LoraId(0)}};
  start();
  GenerateRequest adapted = idle_request("pair:fixed");
  const auto expected = run(*engine_, adapted);
  EXPECT_TRUE(expected->wait().ok()) << expected->wait();
  unload_all();
  const auto again = run(*engine_, adapted);
  EXPECT_TRUE(again->wait().ok()) << again->wait();
  EXPECT_EQ(again->ids(), expected->ids());
  EXPECT_NE(again->ids(), idle_answer(1));
  unload_all();

  const test::TempDir folder;
  const std::string path = folder.write("sql", std::string(100, 'w'));
  ASSERT_TRUE(engine_->load_adapter({.model = "pair", .name = "sql", .path = path}).ok());
  EXPECT_FALSE(engine_->deployment("pair")->unloaded) << "an adapter needs its model";
  clock_.advance(kIdle);
  EXPECT_THAT(engine_->unload_idle().names, IsEmpty());
  EXPECT_TRUE(run(*engine_, idle_request("pair:sql"))->wait().ok());
  ASSERT_TRUE(engine_->unload_adapter("pair", "sql").ok());
  unload_all();
  EXPECT_EQ(engine_->adapter("fixed", ""), "fixed");
}

TEST_F(IdleTest, ALostDeviceEndsTheWaitingRequests) {
  const auto lost = std::make_shared<std::atomic<bool>>(false);
  for (ModelConfig& m : config_.models) {
    m.fake->lost = [lost](const std::string&) { return lost->load(); };
  }
  const test::TempDir folder;
  config_.prefix_store = folder.path();
  start();
  for (int i = 0; i < 2; ++i) {  // pages to be restored
    EXPECT_EQ(run(*engine_, idle_request())->ids(), idle_answer(1));
  }
  unload_all();
  EXPECT_GT(engine_->metrics().prefixes_saved.pages.value(), 0);
  EXPECT_TRUE(engine_->deployment("pair")->available());
  lost->store(true);
  for (int i = 0; i < 2; ++i) {
    const auto sink = run(*engine_, idle_request());
    EXPECT_EQ(sink->wait().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(sink->wait().message()),
                HasSubstr("model \"pair\" could not be loaded: warm-up of model big"));
  }
  EXPECT_EQ(engine_->metrics().prefixes_restored.pages.value(), 0);
  EXPECT_FALSE(engine_->deployment("pair")->available());
  EXPECT_THAT(models(), IsEmpty());
}

TEST_F(IdleTest, StatisticsAreSavedWithoutIt) {
  const test::TempDir folder;
  config_.statistics_file = folder.path() + "/statistics";
  start();
  unload_all();
  EXPECT_TRUE(engine_->save_statistics().ok());
}

// As of DeploymentLoads, with deployments that are unloaded because they are idle.
TEST_F(IdleTest, ManyTimesUnderTrafficNothingLeaksAndNoRequestIsLost) {
  config_.deployments[0].unload_after_idle_seconds = 0;
  start();
  const size_t series = engine_->metrics().series.size();
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&] {
      while (!stop.load()) {
        GenerateRequest drafted = idle_request();
        drafted.method = "speculative";
        const auto sink = run(*engine_, drafted);
        EXPECT_TRUE(sink->wait().ok()) << sink->wait();
        EXPECT_EQ(sink->ids(), idle_answer(1));
        ++answered;
      }
    });
  }
  constexpr int kTimes = 50;
  for (int d = 0; d < 2; ++d) {
    ASSERT_TRUE(engine_
                    ->load_deployment(idle_load(absl::StrCat("late-", d), absl::StrCat("m", d),
                                                static_cast<uint64_t>(10 + d)))
                    .ok());
  }
  for (int i = 0; i < kTimes; ++i) {
    for (int d = 0; d < 2; ++d) wait_for_open(0, absl::StrCat("late-", d));
    clock_.advance(kIdle);
    EXPECT_EQ(engine_->unload_idle().names.size(), 2U);
    // The models may still be there, or on their way out.
    std::vector<std::shared_ptr<Recorder>> sinks;
    for (int r = 0; r < 6; ++r) {
      sinks.push_back(begin(idle_request(absl::StrCat("late-", r % 2))));
    }
    for (size_t r = 0; r < sinks.size(); ++r) {
      EXPECT_TRUE(sinks[r]->wait().ok()) << sinks[r]->wait();
      EXPECT_EQ(sinks[r]->ids(), idle_answer(10 + r % 2));
    }
  }
  EXPECT_EQ(state("late-0").loads, 1 + kTimes);
  EXPECT_EQ(state("late-1").idle_unloads, kTimes);
  for (int d = 0; d < 2; ++d) {
    ASSERT_TRUE(engine_->unload_deployment(absl::StrCat("late-", d), {}).ok());
  }
  stop.store(true);
  for (std::thread& t : clients) t.join();
  EXPECT_GT(answered.load(), 0);
  EXPECT_THAT(models(), ElementsAre("big", "little"));
  EXPECT_EQ(engine_->deployment_states().size(), 1U);
  EXPECT_EQ(engine_->metrics().models.size(), 2U);
  EXPECT_EQ(engine_->metrics().series.size(), series);
  wait_until([&] { return engine_->live_requests() == 0; });
}

// Unloads fall between any two steps of requests.
TEST_F(IdleTest, RequestsThatRaceWithUnloadsAreAnswered) {
  start();
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&] {
      while (!stop.load()) {
        const auto sink = run(*engine_, idle_request());
        EXPECT_TRUE(sink->wait().ok()) << sink->wait();
        EXPECT_EQ(sink->ids(), idle_answer(1));
      }
    });
  }
  wait_until([&] {
    clock_.advance(kIdle);
    (void)engine_->unload_idle();
    return state().idle_unloads >= 20;
  });
  stop.store(true);
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(state().failed_loads, 0);
  wait_for_open(0);
  clock_.advance(kIdle);
  (void)engine_->unload_idle();
  wait_until([&] { return models().empty(); });
}

}  // namespace
}  // namespace tandem
