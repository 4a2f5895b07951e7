// Requests with LoRA adapters, on fake models whose answers depend on the adapter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::make_engine;
using testing::Recorder;
using testing::request_for;
using testing::run;

constexpr int kAdapters = 32;

std::string adapter_name(int i) { return absl::StrCat("adapter-", i); }

// The deployment "pair" with these adapters of the large model, and "alone" with the first two.
EngineConfig adapted_config(int adapters = kAdapters) {
  EngineConfig config = testing::fake_engine_config();
  DeploymentConfig alone;
  alone.name = "alone";
  alone.large = "big";
  config.deployments.push_back(alone);
  for (int i = 0; i < adapters; ++i) {
    config.models[0].loras.push_back({adapter_name(i), ""});
    config.deployments[0].adapters.push_back({adapter_name(i), LoraId(i)});
    if (i < 2) config.deployments[1].adapters.push_back({adapter_name(i), LoraId(i)});
  }
  config.deployments[0].methods["bild"] = {{"early_exit_layer", 2}};
  return config;
}

GenerateRequest request(const std::string& method, int adapter, int seed = 0) {
  GenerateRequest r = request_for(absl::StrCat("def function_", seed % 3, "(x): return"), 24);
  r.method = method;
  if (adapter >= 0) r.adapter = adapter_name(adapter);
  r.sampling.seed = static_cast<uint64_t>(seed);
  if (seed % 2 == 1) r.sampling.temperature = 0.9;
  return r;
}

TEST(EngineLora, LosslessMethodsGiveTheTokensOfAutoregressiveDecodingWithTheAdapter) {
  const auto engine = make_engine(adapted_config());
  ASSERT_NE(engine, nullptr);
  struct Sent {
    int adapter;
    std::shared_ptr<Recorder> reference;
    std::vector<std::pair<std::string, std::shared_ptr<Recorder>>> others;
  };
  std::vector<Sent> all;
  for (int i = -1; i < kAdapters; ++i) {
    Sent& sent = all.emplace_back();
    sent.adapter = i;
    const auto submit = [&](GenerateRequest r) {
      const auto sink = std::make_shared<Recorder>();
      engine->submit(std::move(r), sink);
      return sink;
    };
    sent.reference = submit(request(kAutoregressive, i, i + 1));
    for (const char* method : {kAuto, "speculative", "ngram", "bild"}) {
      GenerateRequest r = request(method, i, i + 1);
      if (method == std::string("bild")) {
        r.parameters = {{"rollback_threshold", 0.69}, {"fallback_threshold", 1.01}};
        if (i % 2 == 0) r.parameters.push_back({"early_exit", true});
      }
      if (method != std::string("bild")) r.require_contract = Contract::kExact;
      sent.others.emplace_back(method, submit(std::move(r)));
    }
  }
  std::map<std::vector<Token>, std::set<int>> by_tokens;  // of the same prompt and seed
  for (const Sent& sent : all) {
    ASSERT_TRUE(sent.reference->wait().ok()) << sent.reference->wait();
    by_tokens[sent.reference->ids()].insert(sent.adapter);
    for (const auto& [method, sink] : sent.others) {
      ASSERT_TRUE(sink->wait().ok()) << method << sink->wait();
      EXPECT_EQ(sink->ids(), sent.reference->ids()) << method << " " << sent.adapter;
    }
  }
  for (int i = -1; i < kAdapters; i += 2) {  // greedy
    std::vector<Token> prompt;
    for (const char c : absl::StrCat("def function_", (i + 1) % 3, "(x): return"))
      prompt.push_back(c);
    EXPECT_EQ(all[static_cast<size_t>(i + 1)].reference->ids(),
              fake::greedy(fake::with_lora(testing::fake_model(), LoraId(i)), prompt, 24));
  }
  EXPECT_EQ(by_tokens.size(), all.size()) << "each adapter answers in its own way";
  for (int i = -1; i < kAdapters; ++i) {
    EXPECT_EQ(run(*engine, request(kAutoregressive, i, i + 1))->ids(),
              all[static_cast<size_t>(i + 1)].reference->ids())
        << "alone as among others";
  }
}

TEST(EngineLora, EachFormOfTheNameGivesTheSameAnswer) {
  const auto engine = make_engine(adapted_config());
  ASSERT_NE(engine, nullptr);
  const auto ids = [&](const std::string& model, const std::string& adapter) {
    GenerateRequest r = request(kAutoregressive, -1);
    r.model = model;
    r.adapter = adapter;
    const auto sink = run(*engine, r);
    EXPECT_TRUE(sink->wait().ok()) << sink->wait();
    return sink->ids();
  };
  const auto expected = ids("pair", "adapter-5");
  EXPECT_EQ(ids("pair:adapter-5", ""), expected);
  EXPECT_EQ(ids("adapter-5", ""), expected) << "of one deployment only";
  EXPECT_EQ(ids("alone:adapter-1", ""), ids("pair:adapter-1", "")) << "one model, one adapter";
  EXPECT_NE(ids("pair", ""), expected);
  EXPECT_EQ(engine->adapter("adapter-5", ""), "adapter-5");
  EXPECT_EQ(engine->adapter("pair", ""), "");
  EXPECT_EQ(engine->deployment("adapter-5")->name, "pair");
  EXPECT_EQ(engine->deployment("pair")->adapters.size(), 32U);
}

TEST(EngineLora, WrongNamesAreRefused) {
  const auto engine = make_engine(adapted_config(2));
  ASSERT_NE(engine, nullptr);
  const auto status = [&](const std::string& model, const std::string& adapter) {
    GenerateRequest r = request(kAutoregressive, -1);
    r.model = model;
    r.adapter = adapter;
    return run(*engine, r)->wait();
  };
  EXPECT_EQ(status("pair", "adapter-7").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status("pair", "adapter-7").message()),
              HasSubstr("known: \"adapter-0\", \"adapter-1\""));
  EXPECT_EQ(status("pair:adapter-7", "").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status("adapter-1", "").code(), absl::StatusCode::kNotFound) << "of two deployments";
  EXPECT_EQ(status("pair:adapter-1", "adapter-0").code(), absl::StatusCode::kInvalidArgument);

  EmbedRequest embed;
  embed.model = "pair:adapter-1";
  embed.prompt = std::string("text");
  std::promise<absl::Status> embedded;
  engine->embed(embed,
                [&](const absl::StatusOr<EmbedResult>& r) { embedded.set_value(r.status()); });
  const absl::Status refused = embedded.get_future().get();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "embed: model \"pair:adapter-1\" names an adapter; offered: Generate, Score");
}

TEST(EngineLora, ScoresAreThoseOfTheAdaptedModel) {
  const auto engine = make_engine(adapted_config(2));
  ASSERT_NE(engine, nullptr);
  const auto score = [&](const std::string& adapter) {
    ScoreRequest r;
    r.model = "pair";
    r.adapter = adapter;
    r.prompt = std::string("some context");
    r.continuation = std::string(" and more");
    std::promise<absl::StatusOr<ScoreResult>> result;
    engine->score(r, [&](absl::StatusOr<ScoreResult> s) { result.set_value(std::move(s)); });
    const auto got = result.get_future().get();
    EXPECT_TRUE(got.ok()) << got.status();
    return got.ok() ? got->total_logprob : 0;
  };
  const double base = score("");
  EXPECT_NE(score("adapter-0"), base);
  EXPECT_NE(score("adapter-0"), score("adapter-1"));
  EXPECT_EQ(score(""), base);

  // As the tokens that generation reports.
  GenerateRequest r = request(kAutoregressive, 0);
  r.prompt = std::string("some context");
  r.logprobs = true;
  const auto sink = run(*engine, r);
  ASSERT_TRUE(sink->wait().ok());
  double sum = 0;
  for (const TokenInfo& t : sink->tokens()) sum += *t.logprob;
  ScoreRequest again;
  again.model = "pair:adapter-0";
  again.prompt = std::string("some context");
  again.continuation = sink->ids();
  std::promise<double> total;
  engine->score(again, [&](absl::StatusOr<ScoreResult> s) {
    total.set_value(s.ok() ? s->total_logprob : 0);
  });
  EXPECT_NEAR(total.get_future().get(), sum, 1e-4);
}

TEST(EngineLora, PrefixesAreSharedWithinAnAdapterOnly) {
  const auto engine = make_engine(adapted_config(2));
  ASSERT_NE(engine, nullptr);
  const auto cached = [&](int adapter) {
    GenerateRequest r = request(kAutoregressive, adapter);
    r.prompt = std::string("A beginning that several requests have in common, and more");
    const auto sink = run(*engine, r);
    EXPECT_TRUE(sink->wait().ok());
    return sink->end().usage.cached_tokens;
  };
  for (const int adapter : {-1, 0, 1}) EXPECT_EQ(cached(adapter), 0) << adapter;
  for (const int adapter : {-1, 0, 1}) EXPECT_EQ(cached(adapter), 57) << adapter;
}

TEST(EngineLora, ChoicesAndBeamsHaveTheAdapter) {
  const auto engine = make_engine(adapted_config(2));
  ASSERT_NE(engine, nullptr);
  GenerateRequest many = request(kAutoregressive, 1, 1);
  many.n = 3;
  const auto choices = run(*engine, many);
  ASSERT_TRUE(choices->wait().ok());
  EXPECT_EQ(choices->ids(0), run(*engine, request(kAutoregressive, 1, 1))->ids());
  const auto beams = [&](int adapter) {
    GenerateRequest r = request(kAutoregressive, adapter);
    r.beam = {{"width", int64_t{3}}};
    const auto sink = run(*engine, r);
    EXPECT_TRUE(sink->wait().ok()) << sink->wait();
    return sink->ids();
  };
  EXPECT_NE(beams(0), beams(1));
  EXPECT_NE(beams(0), beams(-1));
}

TEST(EngineLora, RequestsAreCountedByAdapter) {
  const auto engine = make_engine(adapted_config(2));
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 3; ++i) run(*engine, request(kAuto, 1));
  run(*engine, request(kAuto, -1));
  const auto adapters = engine->metrics().adapters.all();
  ASSERT_EQ(adapters.size(), 4U);
  EXPECT_EQ(adapters[0]->requests.value(), 0);
  EXPECT_EQ(adapters[1]->requests.value(), 3);
  EXPECT_EQ(adapters[1]->model, "pair");
  EXPECT_EQ(adapters[2]->model, "alone");
  engine->shutdown(TimePoint{});
  for (const auto& s : adapters) {
    EXPECT_EQ(s->requests_running.value(), 0);
    EXPECT_EQ(s->requests_waiting.value(), 0);
  }
}

TEST(EngineLora, StatisticsOfDraftsAreKeptByAdapter) {
  const test::TempDir folder;
  EngineConfig config = adapted_config(2);
  config.statistics_file = folder.path() + "/statistics";
  const auto lines = [&] {
    std::map<std::string, std::string> found;  // by "drafts NAME"
    std::ifstream file(config.statistics_file);
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("drafts pair")) continue;
      const size_t end = line.find(' ', 7);
      found[line.substr(7, end - 7)] = line.substr(end);
    }
    return found;
  };
  auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->save_statistics().ok());
  const auto before = lines();
  ASSERT_EQ(before.size(), 3U);
  engine = make_engine(config);
  ASSERT_TRUE(engine->statistics_read().ok());
  for (int i = 0; i < 4; ++i) run(*engine, request("speculative", 1));
  GenerateRequest paced = request("speculative", 1);
  paced.parameters = {{"pace", std::string("PACE_FASTEST")}};
  for (int i = 0; i < 4; ++i) run(*engine, paced);
  ASSERT_TRUE(engine->save_statistics().ok());
  const auto after = lines();
  EXPECT_EQ(after.at("pair"), before.at("pair"));
  EXPECT_EQ(after.at("pair:adapter-0"), before.at("pair:adapter-0"));
  EXPECT_NE(after.at("pair:adapter-1"), before.at("pair:adapter-1"));
}

TEST(EngineLora, ReplicasHaveTheSameAdapters) {
  EngineConfig config = adapted_config(3);
  config.devices.push_back({.index = 1});
  config.models[0].replicas = {"cpu:1"};
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    engine->submit(request(kAuto, i % 3), sinks.back());
  }
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait().ok()) << sink->wait();
  for (size_t i = 3; i < sinks.size(); ++i) EXPECT_EQ(sinks[i]->ids(), sinks[i % 3]->ids());
  EXPECT_NE(sinks[0]->ids(), sinks[1]->ids());
}

}  // namespace
}  // namespace tandem
