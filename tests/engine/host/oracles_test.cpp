// docs/reliability.md, method oracles, on the whole engine: small random transformers in fp64 and
// many concurrent requests of all methods. Equal means equal tokens.
#ifdef TANDEM_WITH_TORCH
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "engine/decode/bild.h"
#include "engine/decode/ppd.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/host/kit.h"
#include "tests/engine/host/tiny_directory.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;

// The large model and three small ones: itself, itself in int8 (sometimes wrong), and another model
// (right by chance).
EngineConfig config_of(const std::string& directory, const std::string& other,
                       const ExtraConfig& masks) {
  EngineConfig config;
  for (const int device_queue : {0, 1}) {
    DeviceConfig& d = config.devices.emplace_back();
    d.queue = device_queue;
    d.threads = 1;
    d.memory_bytes = 256 << 20;
  }
  const auto add = [&](const std::string& name, const std::string& path, DType dtype) {
    ModelConfig& model = config.models.emplace_back();
    model.name = name;
    model.path = path;
    model.dtype = dtype;
  };
  add("large", directory, DType::kFloat64);
  config.models.back().extras = {masks};
  add("same", directory, DType::kFloat64);
  config.models.back().extras = {masks};
  add("near", directory, DType::kInt8);
  add("other", other, DType::kFloat64);
  add("worker", directory, DType::kFloat64);  // of the lower half
  config.models.back().layers = 3;
  config.models.back().device = "cpu:0/1";
  for (const char* small : {"same", "near", "other"}) {
    config.deployments.push_back({small, "large", small});
    DeploymentConfig& alone = config.deployments.emplace_back();
    alone.name = std::string(small) + " alone";
    alone.large = small;
  }
  config.deployments.push_back({"masked", "large", "same"});
  config.deployments.back().methods["speculative"] = {{"adapter", masks.name}};
  config.deployments.back().methods["bild"] = {{"adapter", masks.name}};
  config.deployments.push_back({"early", "large", ""});
  config.deployments.back().methods["bild"] = {{"early_exit_layer", 3}};
  config.deployments.back().methods["ppd"] = {{"exit_layer", 3},
                                              {"workers", std::vector<std::string>{"worker"}}};
  config.deployments.back().methods["bita"] = {{"adapter", masks.name}};
  return config;
}

// Four random masks and a random prompt of three rows.
ExtraConfig random_masks(const test::AdapterFolders& folders) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  const auto numbers = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t side : shape) n *= side;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = normal(random);
    return test::Matrix{name, std::move(shape), std::move(values)};
  };
  const DecoderConfig& c = folders.base;
  const std::vector<int64_t> rows = {c.layers, 3, c.kv_heads, c.head_dim};
  return folders.write("masks", {{"kind", "masks"}},
                       {numbers("masks", {4, c.hidden_size}), numbers("prompt.keys", rows),
                        numbers("prompt.values", rows)});
}

class Oracles : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_tiny_model(large_.path(), 1);
    test::write_tiny_model(other_.path(), 2);
    folders_ = std::make_unique<test::AdapterFolders>(large_.path());
    engine_ = make_engine(config_of(large_.path(), other_.path(), random_masks(*folders_)));
    ASSERT_NE(engine_, nullptr);
  }

  std::shared_ptr<Recorder> send(GenerateRequest request) {
    auto sink = std::make_shared<Recorder>(request.n);
    engine_->submit(std::move(request), sink);
    return sink;
  }

  const test::TempDir large_, other_;
  std::unique_ptr<test::AdapterFolders> folders_;
  std::unique_ptr<Engine> engine_;
};

GenerateRequest random_request(uint64_t i) {
  std::mt19937_64 random(i);
  std::vector<Token> prompt(1 + random() % 20);
  for (Token& t : prompt) t = static_cast<Token>(random() % 64);
  return testing::request_for(prompt, 12 + static_cast<int64_t>(i % 9));
}

GenerateRequest sampled(uint64_t i) {
  GenerateRequest r = random_request(i);
  r.sampling.seed = i;
  r.sampling.temperature = i % 3 == 0 ? 1.1F : 0.6F;
  if (i % 2 == 0) r.sampling.top_p = 0.9;
  if (i % 5 == 1) r.sampling.top_k = 12;
  if (i % 4 == 1) r.sampling.repetition_penalty = 1.2;
  if (i % 4 == 2) r.sampling.frequency_penalty = 0.4;
  if (i % 4 == 3) r.sampling.presence_penalty = -0.3;
  return r;
}

// A method with parameters for which it is EXACT.
struct Way {
  const char* method;
  const char* model;
  Settings parameters;
  bool when_sampled = true;
};

std::vector<Way> exact_ways() {
  const Settings verified = {{"rollback_threshold", 0.69}, {"fallback_threshold", 0.1}};
  std::vector<Way> ways;
  for (const char* small : {"same", "near", "other"}) {
    ways.push_back({"speculative", small, {{"draft_tokens", int64_t{5}}}});
    ways.push_back({"speculative",
                    small,
                    {{"draft_tokens", int64_t{8}}, {"pace", std::string("PACE_ADAPTIVE")}}});
    ways.push_back({"speculative", small, {{"draft_vocabulary", int64_t{40}}}});
    ways.push_back({"speculative",
                    small,
                    {{"draft_vocabulary", int64_t{8}}, {"min_draft_probability", 0.01}}});
    ways.push_back({"bild", small, {{"fallback_threshold", 1.5}}});
    ways.push_back({"bild", small, verified, /*when_sampled=*/false});
    ways.push_back({"auto", small, {}});
  }
  ways.push_back({"speculative", "masked", {{"draft_tokens", int64_t{5}}}});
  ways.push_back(
      {"speculative", "masked", {{"draft_tokens", int64_t{7}}, {"num_masks", int64_t{3}}}});
  ways.push_back({"speculative", "masked", {{"pace", std::string("PACE_FASTEST")}}});
  ways.push_back({"auto", "masked", {}});
  ways.push_back({"bild", "masked", verified, /*when_sampled=*/false});
  ways.push_back({"ngram", "early", {{"draft_tokens", int64_t{4}}}});
  ways.push_back({"ppd", "early", {{"num_candidates", int64_t{1}}}});
  ways.push_back({"ppd", "early", {{"num_candidates", int64_t{4}}}});
  ways.push_back(
      {"ppd", "early", {{"num_candidates", int64_t{2}}, {"draft_vocabulary", int64_t{40}}}});
  for (const char* tree : {"TREE_EFFICIENT", "TREE_TRIANGLE"}) {
    ways.push_back({"bita",
                    "early",
                    {{"tree", std::string(tree)},
                     {"num_masks", int64_t{3}},
                     {"num_candidates", int64_t{4}},
                     {"pace", std::string("PACE_FIXED")}}});
    ways.push_back({"bita",
                    "early",
                    {{"tree", std::string(tree)},
                     {"num_masks", int64_t{3}},
                     {"num_candidates", int64_t{2}},
                     {"draft_vocabulary", int64_t{40}},
                     {"pace", std::string("PACE_FIXED")}}});
  }
  ways.push_back({"bild",
                  "early",
                  {{"early_exit", true}, {"rollback_threshold", 0.5}, {"fallback_threshold", 0.2}},
                  /*when_sampled=*/false});
  return ways;
}

TEST_F(Oracles, AsManyMasksAsTheSmallModelHas) {
  const auto refusal = [&](const char* model, int64_t masks) {
    GenerateRequest r = random_request(1);
    r.model = model;
    r.method = "speculative";
    r.parameters = {{"num_masks", masks}};
    return send(std::move(r))->wait();
  };
  EXPECT_TRUE(refusal("masked", 0).ok());
  EXPECT_TRUE(refusal("masked", 4).ok());
  EXPECT_TRUE(refusal("near", 0).ok());
  EXPECT_THAT(
      std::string(refusal("masked", 5).message()),
      ::testing::HasSubstr("speculative.num_masks: 5; allowed: 1 to 4, the masks of masks"));
  EXPECT_THAT(std::string(refusal("near", 1).message()),
              ::testing::HasSubstr("speculative.num_masks: 1"));
  EXPECT_THAT(std::string(refusal("near", 1).message()), ::testing::HasSubstr("names no adapter"));
}

// F.1, F.2, F.9: concurrent requests of all methods, each compared with autoregressive decoding.
TEST_F(Oracles, ExactMethodsGiveTheTokensOfAutoregressiveDecoding) {
  const std::vector<Way> ways = exact_ways();
  struct Sent {
    size_t way;
    std::shared_ptr<Recorder> exact, ar;
  };
  std::vector<int64_t> drafted(ways.size());
  int sampled_requests = 0;
  constexpr uint64_t kRequests = 2500, kAtOnce = 100;
  for (uint64_t first = 0; first < kRequests; first += kAtOnce) {
    std::vector<Sent> all;
    for (uint64_t i = first; i < first + kAtOnce; ++i) {
      const size_t w = i % ways.size();
      const bool draws = ways[w].when_sampled && i % 7 != 0;
      sampled_requests += draws ? 1 : 0;
      GenerateRequest r = draws ? sampled(i) : random_request(i);
      r.model = ways[w].model;
      r.method = "autoregressive";
      Sent& sent = all.emplace_back(Sent{w, nullptr, send(r)});
      r.method = ways[w].method;
      r.parameters = ways[w].parameters;
      r.require_contract = Contract::kExact;
      sent.exact = send(std::move(r));
    }
    for (const Sent& sent : all) {
      const Way& way = ways[sent.way];
      ASSERT_TRUE(sent.ar->wait().ok()) << sent.ar->wait();
      ASSERT_TRUE(sent.exact->wait().ok()) << way.method << ": " << sent.exact->wait();
      ASSERT_EQ(sent.exact->ids(), sent.ar->ids()) << way.method << " with " << way.model;
      drafted[sent.way] += sent.exact->end().stats.small_tokens;
    }
  }
  EXPECT_GE(sampled_requests, 1000);
  for (size_t w = 0; w < ways.size(); ++w) {  // drafts were accepted, so equality is not trivial
    // PACE_FASTEST drafts only while that is faster, and these models are too small for that.
    const bool never = ways[w].parameters == Settings{{"fallback_threshold", 1.5}} ||
                       ways[w].parameters == Settings{{"pace", std::string("PACE_FASTEST")}};
    if (!never && ways[w].method != std::string("auto")) {
      EXPECT_GT(drafted[w], 5) << ways[w].method << " with " << ways[w].model;
    }
  }
}

// The small model is the large one, so it drafts what it may: of ids beyond the draft vocabulary,
// those of the text.
TEST_F(Oracles, IdsOfTheTextAreDrafted) {
  constexpr Token kFirst = 8;
  int64_t of_text = 0;
  std::vector<std::pair<std::vector<Token>, std::shared_ptr<Recorder>>> all;
  for (uint64_t i = 0; i < 60; ++i) {
    GenerateRequest r = i % 2 == 0 ? sampled(i) : random_request(i);
    r.stopping.max_new_tokens = 40;
    r.model = i % 3 == 0 ? "masked" : "same";
    r.method = "speculative";
    r.parameters = {{"draft_vocabulary", int64_t{kFirst}}, {"draft_tokens", int64_t{5}}};
    std::vector<Token> prompt = std::get<std::vector<Token>>(r.prompt);
    all.emplace_back(std::move(prompt), send(std::move(r)));
  }
  for (auto& [text, sent] : all) {
    ASSERT_TRUE(sent->wait().ok()) << sent->wait();
    for (const TokenInfo& t : sent->tokens()) {
      if (t.provenance.proposed != Source::kLarge && t.id >= kFirst) {
        EXPECT_NE(std::ranges::find(text, t.id), text.end());
        ++of_text;
      }
      text.push_back(t.id);
    }
  }
  EXPECT_GT(of_text, 100);
}

// Kernels that are not batch-invariant, as on CUDA: `auto` drafts, and its tokens are the large
// model's own up to rounding. In fp64 no two choices of these models are equal up to rounding.
TEST(RoundingOracles, AutoDraftsAndGivesTheTokensOfAutoregressiveDecoding) {
  const test::TempDir large, other;
  test::write_tiny_model(large.path(), 1);
  test::write_tiny_model(other.path(), 2);
  EngineConfig config;
  DeviceConfig& device = config.devices.emplace_back();
  device.threads = 1;
  device.memory_bytes = 256 << 20;
  device.cpu_kernels = CpuKernels::kAten;
  device.packed_products = true;
  for (const auto& [name, path] :
       {std::pair("large", large.path()), std::pair("same", large.path()),
        std::pair("other", other.path())}) {
    ModelConfig& model = config.models.emplace_back();
    model.name = name;
    model.path = path;
    model.dtype = DType::kFloat64;
  }
  // These models are too small for drafts to pay, so two deployments draft at a fixed pace.
  config.deployments = {{"same", "large", "same"},
                        {"other", "large", "other"},
                        {"default", "large", "same"},
                        {"alone", "large", ""}};
  config.deployments[0].default_method = config.deployments[1].default_method = "speculative";
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  const auto send = [&](GenerateRequest r) {
    auto sink = std::make_shared<Recorder>();
    engine->submit(std::move(r), sink);
    return sink;
  };
  struct Sent {
    std::string model;
    std::shared_ptr<Recorder> drafted, exact;
  };
  std::vector<Sent> all;
  for (uint64_t i = 0; i < 48; ++i) {
    GenerateRequest r = i % 3 == 0 ? random_request(i) : sampled(i);
    r.model = config.deployments[i % 4].name;
    r.method = kAuto;
    if (i % 2 == 0) r.require_contract = Contract::kExactUpToRounding;
    Sent& sent = all.emplace_back(Sent{r.model, send(r), nullptr});
    r.require_contract = Contract::kExact;
    sent.exact = send(std::move(r));
  }
  std::map<std::string, int64_t> accepted;  // by deployment
  for (const Sent& sent : all) {
    ASSERT_TRUE(sent.drafted->wait().ok()) << sent.drafted->wait();
    ASSERT_TRUE(sent.exact->wait().ok()) << sent.exact->wait();
    EXPECT_EQ(sent.drafted->start().contract, Contract::kExactUpToRounding);
    EXPECT_EQ(sent.drafted->start().method, sent.model == "alone" ? "ngram" : "speculative");
    EXPECT_EQ(sent.exact->start().contract, Contract::kExact);
    EXPECT_EQ(sent.exact->start().method, kAutoregressive);
    EXPECT_EQ(sent.drafted->ids(), sent.exact->ids()) << sent.model;
    accepted[sent.model] += sent.drafted->end().stats.small_tokens;
  }
  EXPECT_GT(accepted["same"], 50);
  EXPECT_GT(accepted["other"], 0);
}

// Models of five and six layers, and workers with one to three layers, on another device queue and
// on another device.
EngineConfig pipelines_of(const std::string& directory) {
  EngineConfig config;
  for (const auto& [index, device_queue] : {std::pair(0, 0), {0, 1}, {1, 0}}) {
    DeviceConfig& d = config.devices.emplace_back();
    d.index = index;
    d.queue = device_queue;
    d.threads = 1;
    d.memory_bytes = 64 << 20;
  }
  const auto add = [&](const std::string& name, int layers, const std::string& device) {
    ModelConfig& model = config.models.emplace_back();
    model.name = name;
    model.path = directory;
    model.layers = layers;
    model.device = device;
    model.dtype = DType::kFloat64;
  };
  for (const int s : {1, 2, 3}) {
    add("device queue " + std::to_string(s), s, "cpu:0/1");
    add("device " + std::to_string(s), s, "cpu:1");
  }
  for (const int layers : {5, 6}) {
    const std::string large = std::to_string(layers);
    add(large, layers, "cpu:0");
    for (int exit = (layers + 1) / 2; exit < layers; ++exit) {
      const std::string s = std::to_string(layers - exit);
      for (const std::vector<std::string>& workers :
           {std::vector<std::string>{"device queue " + s}, {"device queue " + s, "device " + s}}) {
        DeploymentConfig& d = config.deployments.emplace_back();
        d.name = large + "/" + std::to_string(exit) + "/" + std::to_string(workers.size());
        d.large = large;
        d.methods["ppd"] = {{"exit_layer", int64_t{exit}}, {"workers", workers}};
      }
    }
  }
  return config;
}

// F.1, F.7: an even and an odd number of layers, every early layer from half of them on, any number
// of candidates on one worker and on two, greedy and sampled, all at once.
TEST(PpdOracles, EveryEarlyLayerAndNumberOfCandidatesGivesTheTokensOfAutoregressiveDecoding) {
  const test::TempDir directory;
  test::write_tiny_model(directory.path(), 1);
  const EngineConfig config = pipelines_of(directory.path());
  const auto engine = make_engine(config);
  ASSERT_NE(engine, nullptr);
  const auto send = [&](GenerateRequest r) {
    auto sink = std::make_shared<Recorder>();
    engine->submit(std::move(r), sink);
    return sink;
  };
  struct Sent {
    std::string what;
    std::shared_ptr<Recorder> ppd, ar;
  };
  std::vector<Sent> all;
  for (const DeploymentConfig& d : config.deployments) {
    for (const int64_t k : {1, 2, 3, 5, 8, 16}) {
      for (const bool greedy : {true, false}) {
        GenerateRequest r = greedy ? random_request(all.size()) : sampled(all.size());
        r.model = d.name;
        r.method = "autoregressive";
        Sent& sent = all.emplace_back();
        sent.what = d.name + ", k " + std::to_string(k) + (greedy ? "" : ", sampled");
        sent.ar = send(r);
        r.method = "ppd";
        r.parameters = {{"num_candidates", k}};
        r.require_contract = Contract::kExact;
        sent.ppd = send(std::move(r));
      }
    }
  }
  EXPECT_EQ(all.size(), 5U * 2 * 6 * 2);
  std::map<std::string, int64_t> adopted;  // by deployment
  for (const Sent& sent : all) {
    ASSERT_TRUE(sent.ar->wait().ok()) << sent.what << ": " << sent.ar->wait();
    ASSERT_TRUE(sent.ppd->wait().ok()) << sent.what << ": " << sent.ppd->wait();
    EXPECT_EQ(sent.ppd->ids(), sent.ar->ids()) << sent.what;
    adopted[sent.what.substr(0, 5)] += sent.ppd->end().stats.own[PpdFigures::kAdopted];
  }
  for (const DeploymentConfig& d : config.deployments) {
    EXPECT_GT(adopted[d.name], 3) << d.name << ": equality would be no accident";
  }
}

// F.3: without fallbacks and rollbacks the small model decodes alone after the large one's first
// token.
TEST_F(Oracles, BildThatIsNeverCheckedIsTheSmallModel) {
  for (const char* small : {"near", "other"}) {
    for (uint64_t i = 0; i < 20; ++i) {
      GenerateRequest r = random_request(i);
      r.model = small;
      r.method = "bild";
      r.parameters = {{"fallback_threshold", 0.0},
                      {"rollback_threshold", std::numeric_limits<double>::infinity()},
                      {"max_small_run", int64_t{0}},
                      {"verify_eos", false}};
      const auto bild = send(r);
      ASSERT_TRUE(bild->wait().ok()) << bild->wait();
      const std::vector<Token> tokens = bild->ids();

      auto prompt = std::get<std::vector<Token>>(r.prompt);
      prompt.push_back(tokens[0]);
      GenerateRequest after = testing::request_for(prompt, *r.stopping.max_new_tokens - 1);
      after.model = std::string(small) + " alone";
      after.method = "autoregressive";
      const auto alone = send(after);
      ASSERT_TRUE(alone->wait().ok()) << alone->wait();
      EXPECT_EQ(std::vector<Token>(tokens.begin() + 1, tokens.end()), alone->ids()) << small;
    }
  }
}

// F.4
TEST_F(Oracles, AModelNeverRollsItselfBack) {
  int64_t drafts = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    GenerateRequest r = random_request(i);
    r.model = "same";
    r.method = "bild";
    r.parameters = {{"fallback_threshold", 0.1}, {"rollback_threshold", 0.0}};
    const auto sink = send(r);
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    EXPECT_EQ(sink->end().stats.own[BildFigures::kRollbacks], 0);
    drafts += sink->end().stats.small_tokens;
  }
  EXPECT_GT(drafts, 100);
}

}  // namespace
}  // namespace tandem
#endif
