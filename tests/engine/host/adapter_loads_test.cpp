// LoRA adapters that are loaded and unloaded while an engine runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/base/status.h"
#include "tests/engine/backend/torch/lora_folders.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::run;

constexpr char kText[] = "def function(x): return";

GenerateRequest request(const std::string& adapter, int tokens = 24) {
  GenerateRequest r = testing::request_for(std::string(kText), tokens);
  r.adapter = adapter;
  return r;
}

// What the fake model with the adapter answers.
std::vector<Token> answer_of(int id, int tokens = 24) {
  std::vector<Token> prompt;
  for (const char c : std::string(kText)) prompt.push_back(c);
  return fake::greedy(fake::with_lora(testing::fake_model(), LoraId(id)), prompt, tokens);
}

std::vector<std::string> adapters_of(const Engine& engine, const std::string& deployment = "pair") {
  std::vector<std::string> names;
  const auto info = engine.deployment(deployment);
  EXPECT_TRUE(info.ok()) << info.status();
  for (const AdapterInfo& a : info->adapters) names.push_back(a.name);
  return names;
}

double weight_bytes(const Engine& engine) {
  return engine.metrics().models[0].weight_bytes.value();
}

// Waits until no request has KV pages and the prefix cache has `pages`.
bool caches(const Engine& engine, double pages) {
  const ModelSeries& series = engine.metrics().models[0];
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (series.kv_pages_used.value() != 0 || series.kv_pages_cached.value() != pages) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}
constexpr double kPages = 2;  // cached of request()

// Two fake models; "first" is an adapter of the configuration. Adapters are files of any bytes.
class AdapterLoads : public ::testing::Test {
 protected:
  AdapterLoads() {
    config_.models[0].loras = {{"first", ""}};
    config_.deployments[0].adapters = {{"first", LoraId(0)}};
  }

  absl::Status load(Engine& engine, const std::string& name, bool replace = false,
                    int64_t bytes = 100) const {
    const std::string path = folder_.write(name, std::string(static_cast<size_t>(bytes), 'w'));
    return engine.load_adapter({.name = name, .path = path, .replace = replace});
  }
  // Runs requests until the loop has freed what earlier ones had.
  static void settle(Engine& engine) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(run(engine, request(""))->wait().ok());
  }

  const test::TempDir folder_;
  EngineConfig config_ = testing::fake_engine_config();
};

TEST_F(AdapterLoads, ALoadedOneServesLikeThoseOfTheConfiguration) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(run(*engine, request("late"))->wait().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(load(*engine, "late").ok());
  EXPECT_THAT(adapters_of(*engine), ElementsAre("first", "late"));
  EXPECT_EQ(run(*engine, request("late"))->ids(), answer_of(1));
  EXPECT_EQ(run(*engine, request("first"))->ids(), answer_of(0));
  GenerateRequest by_model = request("");
  by_model.model = "late";
  EXPECT_EQ(run(*engine, by_model)->ids(), answer_of(1));
  GenerateRequest drafted = request("late");
  drafted.method = "speculative";
  EXPECT_EQ(run(*engine, drafted)->ids(), answer_of(1));

  ScoreRequest score;
  score.model = "pair:late";
  score.prompt = std::string(kText);
  score.continuation = answer_of(1);
  std::promise<absl::Status> scored;
  engine->score(score, [&](const absl::StatusOr<ScoreResult>& r) { scored.set_value(r.status()); });
  EXPECT_TRUE(scored.get_future().get().ok());
}

TEST_F(AdapterLoads, UnloadingEndsNewRequestsAndFreesEverything) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  settle(*engine);
  const double weights = weight_bytes(*engine);
  ASSERT_TRUE(caches(*engine, kPages));
  ASSERT_TRUE(load(*engine, "late").ok());
  EXPECT_EQ(weight_bytes(*engine), weights + 100);
  ASSERT_TRUE(run(*engine, request("late"))->wait().ok());
  settle(*engine);
  EXPECT_TRUE(caches(*engine, 2 * kPages));
  EXPECT_EQ(engine->metrics().adapters.all().size(), 2U);

  ASSERT_TRUE(engine->unload_adapter("", "late").ok());
  EXPECT_EQ(run(*engine, request("late"))->wait().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(adapters_of(*engine), ElementsAre("first"));
  EXPECT_EQ(weight_bytes(*engine), weights);
  EXPECT_EQ(engine->metrics().adapters.all().size(), 1U);
  settle(*engine);
  EXPECT_TRUE(caches(*engine, kPages));
  EXPECT_EQ(engine->unload_adapter("", "late").code(), absl::StatusCode::kNotFound);

  // The next one of the name is another adapter.
  ASSERT_TRUE(load(*engine, "late").ok());
  const auto again = run(*engine, request("late"));
  EXPECT_EQ(again->ids(), answer_of(2));
  EXPECT_EQ(again->end().usage.cached_tokens, 0);
}

TEST_F(AdapterLoads, RunningRequestsKeepTheirAdapter) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  settle(*engine);
  const double weights = weight_bytes(*engine);
  constexpr int kLong = 400;
  ASSERT_TRUE(load(*engine, "late").ok());
  const auto start = [&] {
    const auto sink = std::make_shared<Recorder>();
    engine->submit(request("late", kLong), sink);
    sink->wait_for_tokens(3);
    EXPECT_FALSE(sink->ended());
    return sink;
  };
  const auto old = start();
  ASSERT_TRUE(load(*engine, "late", /*replace=*/true).ok());
  const auto newer = start();
  ASSERT_TRUE(engine->unload_adapter("pair", "late").ok());
  EXPECT_EQ(run(*engine, request("late"))->wait().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(old->wait().ok() && newer->wait().ok());
  EXPECT_EQ(old->ids(), answer_of(1, kLong));
  EXPECT_EQ(newer->ids(), answer_of(2, kLong));
  settle(*engine);
  EXPECT_EQ(weight_bytes(*engine), weights);
  EXPECT_EQ(engine->metrics().adapters.all().size(), 1U);
}

TEST_F(AdapterLoads, OldAndNewShareOneSeries) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(load(*engine, "late").ok());
  const auto old = std::make_shared<Recorder>();
  engine->submit(request("late", 400), old);
  old->wait_for_tokens(1);
  ASSERT_TRUE(load(*engine, "late", true).ok());
  ASSERT_TRUE(run(*engine, request("late"))->wait().ok());
  const auto series = engine->metrics().adapters.all();
  ASSERT_EQ(series.size(), 2U);
  EXPECT_EQ(series[1]->requests.value(), 2);
  ASSERT_TRUE(old->wait().ok());
}

TEST_F(AdapterLoads, RefusalsNameTheFieldAndChangeNothing) {
  DeploymentConfig other;
  other.name = "alone";
  other.large = "big";
  config_.deployments.push_back(other);
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const std::string good = folder_.write("good", "weights");
  const auto refused = [&](const Engine::AdapterLoad& load, absl::StatusCode code) {
    const absl::Status status = engine->load_adapter(load);
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  using enum absl::StatusCode;
  EXPECT_EQ(refused({.name = "a", .path = good}, kInvalidArgument),
            "model: unset; allowed: \"pair\", \"alone\"");
  EXPECT_EQ(refused({"x", "a", good}, kNotFound), "model: \"x\"; known: \"pair\", \"alone\"");
  EXPECT_EQ(refused({"pair", "a:b", good}, kInvalidArgument),
            "adapter: \"a:b\"; allowed: 1 to 64 of letters, digits and . _ - /");
  EXPECT_EQ(refused({"pair", "alone", good}, kInvalidArgument),
            "adapter: \"alone\"; allowed: a name that no deployment has");
  EXPECT_EQ(refused({"pair", "a", folder_.path() + "/none"}, kNotFound),
            folder_.path() + "/none: no such file");
  EXPECT_THAT(refused({"pair", "a", folder_.path()}, kInvalidArgument), HasSubstr("a folder"));
  EXPECT_THAT(refused({"pair", "first", good, true}, kFailedPrecondition),
              HasSubstr("\"first\", an adapter of the configuration"));
  EXPECT_EQ(engine->unload_adapter("pair", "first").code(), kFailedPrecondition);
  EXPECT_EQ(engine->unload_adapter("alone", "first").code(), kNotFound);
  EXPECT_EQ(engine->unload_adapter("", "pair").message(), "adapter: \"pair\"; known: \"first\"");
  ASSERT_TRUE(engine->load_adapter({"pair", "a", good}).ok());
  EXPECT_EQ(refused({"pair", "a", good}, kAlreadyExists),
            "adapter: \"a\", which is loaded; allowed: another name, or replace (load_inplace)");
  ASSERT_TRUE(engine->load_adapter({"alone", "a", good}).ok()) << "another deployment";
  EXPECT_EQ(engine->unload_adapter("", "a").message(),
            "model: unset; allowed: \"pair\", \"alone\"");
  EXPECT_THAT(adapters_of(*engine), ElementsAre("first", "a"));
  engine->start_drain();
  refused({"pair", "b", good}, kUnavailable);
}

TEST_F(AdapterLoads, TheBudgetEvictsIdleOnes) {
  config_.deployments[0].adapter_memory_bytes = 250;
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(load(*engine, "a").ok());
  ASSERT_TRUE(load(*engine, "b").ok());
  ASSERT_TRUE(run(*engine, request("a"))->wait().ok());
  settle(*engine);
  ASSERT_TRUE(load(*engine, "c").ok());
  EXPECT_THAT(adapters_of(*engine), ElementsAre("first", "a", "c")) << "b was used least recently";

  const auto busy = std::make_shared<Recorder>();
  engine->submit(request("a", 400), busy);
  busy->wait_for_tokens(1);
  const absl::Status refused = load(*engine, "d", false, 200);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("of 200 bytes; there are 3 adapters, and 200 bytes in use, of which 100"));
  EXPECT_THAT(adapters_of(*engine), ElementsAre("first", "a", "c"));
  ASSERT_TRUE(busy->wait().ok());
  settle(*engine);
  ASSERT_TRUE(load(*engine, "d", false, 200).ok());
  EXPECT_THAT(adapters_of(*engine), ElementsAre("first", "d"));
}

// Threads send requests while another loads and unloads. No request is lost, each answers as its
// adapter, and nothing is left.
TEST_F(AdapterLoads, AHundredTimesUnderTraffic) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  settle(*engine);
  ASSERT_TRUE(run(*engine, request("first"))->wait().ok());
  settle(*engine);
  const double weights = weight_bytes(*engine);
  ASSERT_TRUE(caches(*engine, 2 * kPages));
  const std::vector<Token> base = run(*engine, request(""))->ids();

  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::vector<std::thread> clients;
  for (const std::string adapter : {"", "first", "late"}) {
    clients.emplace_back([&, adapter] {
      while (!stop.load()) {
        const auto sink = run(*engine, request(adapter));
        const absl::Status status = sink->wait();
        if (adapter == "late") {
          if (absl::IsNotFound(status)) continue;
        } else {
          EXPECT_EQ(sink->ids(), adapter.empty() ? base : answer_of(0));
        }
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(sink->ids().size(), 24U);
        ++served;
      }
    });
  }
  std::vector<std::shared_ptr<Recorder>> own;
  for (int i = 1; i <= 100; ++i) {
    ASSERT_TRUE(load(*engine, "late", /*replace=*/i % 3 == 0).ok());
    const auto sink = own.emplace_back(std::make_shared<Recorder>());
    engine->submit(request("late"), sink);
    if (i % 2 == 0) ASSERT_TRUE(sink->wait().ok());
    if (i % 3 != 2) ASSERT_TRUE(engine->unload_adapter("", "late").ok());
  }
  if (adapters_of(*engine).size() > 1) ASSERT_TRUE(engine->unload_adapter("", "late").ok());
  for (int i = 1; i <= 100; ++i) {
    ASSERT_TRUE(own[static_cast<size_t>(i) - 1]->wait().ok());
    EXPECT_EQ(own[static_cast<size_t>(i) - 1]->ids(), answer_of(i)) << i;
  }
  stop.store(true);
  for (std::thread& t : clients) t.join();
  EXPECT_GT(served.load(), 0);
  settle(*engine);
  EXPECT_EQ(weight_bytes(*engine), weights);
  EXPECT_TRUE(caches(*engine, 2 * kPages));
  EXPECT_EQ(engine->metrics().adapters.all().size(), 1U);
  EXPECT_TRUE(engine->wait_until_idle(kNever));
}

TEST_F(AdapterLoads, AnEngineEndsWithAdaptersLoaded) {
  auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(load(*engine, "late").ok());
  const auto sink = std::make_shared<Recorder>();
  engine->submit(request("late", 400), sink);
  sink->wait_for_tokens(1);
  ASSERT_TRUE(engine->unload_adapter("", "late").ok());
  ASSERT_TRUE(load(*engine, "late").ok());
  engine.reset();
  (void)sink->wait();
}

#ifdef TANDEM_WITH_TORCH
// A tiny model with weights.
class RealAdapterLoads : public ::testing::Test {
 protected:
  RealAdapterLoads() {
    namespace fs = std::filesystem;
    const fs::path data = fs::path(TANDEM_SOURCE_DIR) / "tests";
    fs::copy(data / "data/golden_models/llama2", directory_.path());
    if (!fs::exists(directory_.path() + "/tokenizer.json")) {
      fs::copy(data / "engine/text/data/tokenizers/llama2/tokenizer.json", directory_.path());
    }
    config_ = testing::real_engine_config("tiny", directory_.path(), DType::kFloat32);
    config_.devices[0].memory_bytes = 64 << 20;
    for (int i = 0; i < 3; ++i) {
      files_.push_back(folders_.write(absl::StrCat("lora", i), 2 + i, static_cast<uint64_t>(i)));
    }
  }

  GenerateRequest ask(const std::string& adapter) const {
    GenerateRequest r = testing::request_for(std::vector<Token>{5, 9, 2, 33, 7, 81, 4}, 20);
    r.model = "tiny";
    r.adapter = adapter;
    r.logprobs = true;
    return r;
  }
  static std::vector<std::pair<Token, float>> answer(Engine& engine, const GenerateRequest& r) {
    const auto sink = run(engine, r);
    EXPECT_TRUE(sink->wait().ok()) << sink->wait();
    std::vector<std::pair<Token, float>> out;
    for (const TokenInfo& t : sink->tokens()) out.emplace_back(t.id, *t.logprob);
    return out;
  }

  const test::TempDir directory_;
  const test::LoraFolders folders_{
      *load_hf_config(std::string(TANDEM_SOURCE_DIR) + "/tests/data/golden_models/llama2")};
  std::vector<ExtraConfig> files_;
  EngineConfig config_;
};

TEST_F(RealAdapterLoads, LogitsAreThoseOfAConfiguredOne) {
  EngineConfig with = config_;
  for (int i = 0; i < 3; ++i) {
    with.models[0].loras.push_back(files_[static_cast<size_t>(i)]);
    with.deployments[0].adapters.push_back({files_[static_cast<size_t>(i)].name, LoraId(i)});
  }
  const auto configured = make_engine(with);
  const auto engine = make_engine(config_);
  ASSERT_TRUE(configured != nullptr && engine != nullptr);
  const double plain = weight_bytes(*engine);
  for (const size_t i : {2U, 0U, 1U}) {
    ASSERT_TRUE(engine->load_adapter({.name = files_[i].name, .path = files_[i].path}).ok());
  }
  EXPECT_EQ(weight_bytes(*engine), weight_bytes(*configured)) << "the estimates are exact";
  EXPECT_GT(weight_bytes(*engine), plain);
  const auto base = answer(*engine, ask(""));
  for (const ExtraConfig& file : files_) {
    const auto got = answer(*engine, ask(file.name));
    EXPECT_EQ(got, answer(*configured, ask(file.name)));
    EXPECT_NE(got, base);
  }
  EXPECT_EQ(base, answer(*configured, ask("")));
}

TEST_F(RealAdapterLoads, WrongFilesAreRefusedAndNothingChanges) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const test::TempDir dir;
  dir.write("a/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "use_dora": true})");
  dir.write("b.gguf", "GGUF");
  for (const char* path : {"/a", "/b.gguf", "/none", "/none.gguf"}) {
    const absl::Status status = engine->load_adapter({.name = "x", .path = dir.path() + path});
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path() + path)) << path;
  }
  EXPECT_TRUE(adapters_of(*engine, "tiny").empty());
}

TEST_F(RealAdapterLoads, UnderTraffic) {
  const auto engine = make_engine(config_);
  ASSERT_NE(engine, nullptr);
  const double plain = weight_bytes(*engine);
  const auto base = answer(*engine, ask(""));
  std::vector<std::vector<std::pair<Token, float>>> want;
  for (const ExtraConfig& file : files_) {
    ASSERT_TRUE(engine->load_adapter({.name = "x", .path = file.path, .replace = true}).ok());
    want.push_back(answer(*engine, ask("x")));
  }
  std::atomic<bool> stop{false};
  std::thread client([&] {
    while (!stop.load()) EXPECT_EQ(answer(*engine, ask("")), base);
  });
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (size_t i = 0; i < 30; ++i) {
    ASSERT_TRUE(
        engine->load_adapter({.name = "x", .path = files_[i % 3].path, .replace = true}).ok());
    const auto sink = sinks.emplace_back(std::make_shared<Recorder>());
    engine->submit(ask("x"), sink);
    if (i % 5 == 4) ASSERT_TRUE(engine->unload_adapter("tiny", "x").ok());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->wait().ok());
    std::vector<std::pair<Token, float>> got;
    for (const TokenInfo& t : sinks[i]->tokens()) got.emplace_back(t.id, *t.logprob);
    EXPECT_EQ(got, want[i % 3]) << i;
  }
  stop.store(true);
  client.join();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(answer(*engine, ask("")), base);
  EXPECT_EQ(weight_bytes(*engine), plain);
}
#endif

}  // namespace
}  // namespace tandem
