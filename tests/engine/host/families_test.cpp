// Every model family on an engine: the best of 4 beams is Transformers', and concurrent requests of
// all families and methods, on two devices, get the same answers as alone.
#ifdef TANDEM_WITH_TORCH
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/engine/host/kit.h"
#include "tests/engine/host/served_golden.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;
using testing::run;
using testing::Served;

constexpr const char* kFamilies[] = {
    "llama2", "llama3",   "mistral", "qwen2",  "starcoder2",    "gemma3",          "gpt2",
    "phi3",   "longrope", "yarn",    "falcon", "falcon_groups", "falcon_one_norm", "falcon_serial",
    "t5",     "t5_v1_1",  "mt5",     "qwen3"};

GenerateRequest beam_search(const Served& served, const std::string& model, int prompt) {
  GenerateRequest r = served.request(prompt, model);
  r.stopping.max_new_tokens = 24;
  r.stopping.ignore_eos = false;
  set_setting(&r.beam, "width", int64_t{4});
  set_setting(&r.beam, "length_penalty", 0.6);
  return r;
}

class Beams : public ::testing::TestWithParam<const char*> {};

TEST_P(Beams, TheBestOfFourIsTransformersAloneAndInSharedBatches) {
  const Served served(GetParam());
  EngineConfig config = testing::real_engine_config("model", served.path(), DType::kFloat32);
  const auto alone = make_engine(config);
  config.limits.prefill_chunk_rows = 7;
  const auto crowd = make_engine(config);
  ASSERT_TRUE(alone != nullptr && crowd != nullptr);
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < served.golden.prompts(); ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    crowd->submit(beam_search(served, "model", i), sinks.back());
    const auto sink = run(*alone, beam_search(served, "model", i));
    ASSERT_TRUE(sink->wait().ok()) << sink->wait();
    EXPECT_EQ(sink->ids(), served.golden.beam(i)) << "prompt " << i << ", alone";
  }
  for (int i = 0; i < served.golden.prompts(); ++i) {
    Recorder& sink = *sinks[static_cast<size_t>(i)];
    ASSERT_TRUE(sink.wait().ok()) << sink.wait();
    EXPECT_EQ(sink.ids(), served.golden.beam(i)) << "prompt " << i << ", together";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Beams, ::testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

// Every golden model, with its lowest layer as small model and as worker on the other device. Each
// device has half of the large models.
class Families {
 public:
  Families() {
    for (int d = 0; d < 2; ++d) {
      DeviceConfig& device = config_.devices.emplace_back();
      device.index = d;
      device.threads = 1;
    }
    for (const char* name : kFamilies) add(name);
  }

  const EngineConfig& config() const { return config_; }

  struct Asked {
    GenerateRequest request;
    std::vector<Token> known;  // Transformers' tokens, or their beginning; empty: unknown
  };

  // With every method that a deployment offers, greedy and sampled, and with beam search.
  std::vector<Asked> requests(const Engine& engine) const {
    std::vector<Asked> all;
    for (const auto& [name, served] : served_) {
      const auto info = engine.deployment(name);
      EXPECT_TRUE(info.ok()) << info.status();
      for (const MethodInfo& method : info->methods) {
        for (const double temperature : {0.0, 0.9}) {
          all.push_back(request(name, *served, method.method, temperature));
        }
      }
      all.push_back({beam_search(*served, name, 3), served->golden.beam(3)});
    }
    return all;
  }

 private:
  void add(const std::string& name) {
    const auto place = static_cast<int>(served_.size());
    const Served& served = *(served_[name] = std::make_unique<Served>(name));
    folders_.push_back(std::make_unique<test::AdapterFolders>(served.path()));
    for (const bool large : {true, false}) {
      ModelConfig& model = config_.models.emplace_back();
      model.name = large ? name : name + "-small";
      model.device = absl::StrCat("cpu:", (place + (large ? 0 : 1)) % 2);
      model.path = served.path();
      model.dtype = DType::kFloat32;
      model.layers = large ? 0 : 1;
      model.page_rows = 8;
      model.kv_pages = 64;
      if (large) model.extras = {testing::write_masks(*folders_.back())};
    }
    DeploymentConfig& deployment = config_.deployments.emplace_back();
    deployment.name = deployment.large = name;
    deployment.small = name + "-small";
    deployment.methods["bita"] = {{"adapter", std::string("masks")}};
    const int exit = folders_.back()->base.layers - 1;
    deployment.methods["ppd"] = {{"exit_layer", int64_t{exit}},
                                 {"workers", std::vector<std::string>{name + "-small"}}};
  }

  // Sampled BiLD is LOSSY: compared only with its answer alone.
  static Asked request(const std::string& name, const Served& served, const std::string& method,
                       double temperature) {
    const int prompt = temperature > 0 ? 6 : 4;
    Asked asked{served.request(prompt, name), {}};
    GenerateRequest& r = asked.request;
    r.method = method;
    r.stopping.max_new_tokens = 12;
    r.sampling.temperature = temperature;
    r.sampling.seed = 7;
    if (method == "bild") {
      r.parameters = {{"fallback_threshold", 0.1}, {"rollback_threshold", 0.69}};
    }
    if (method == "bita") r.parameters = {{"pace", std::string("PACE_FIXED")}};
    if (temperature > 0) return asked;
    r.require_contract = Contract::kExact;
    asked.known = served.golden.greedy(prompt);
    asked.known.resize(12);
    return asked;
  }

  EngineConfig config_;
  std::map<std::string, std::unique_ptr<Served>> served_;
  std::vector<std::unique_ptr<test::AdapterFolders>> folders_;
};

TEST(Families, ConcurrentRequestsOnTwoDevicesAnswerAsAlone) {
  const Families families;
  const auto first = make_engine(families.config());
  ASSERT_NE(first, nullptr);
  const std::vector<Families::Asked> all = families.requests(*first);
  std::vector<std::vector<Token>> alone;
  std::map<std::string, std::set<std::string>> by;  // methods: families
  for (const auto& [r, known] : all) {
    const auto sink = run(*first, r);
    ASSERT_TRUE(sink->wait().ok()) << r.model << ", " << r.method << ": " << sink->wait();
    alone.push_back(sink->ids());
    by[r.method].insert(r.model);
    if (!known.empty()) {
      EXPECT_EQ(alone.back(), known) << r.model << ", " << r.method;
    }
  }
  for (const char* method : {"autoregressive", "speculative", "ngram", "bild", "bita", "ppd"}) {
    EXPECT_EQ(by[method].size(), std::size(kFamilies)) << method;
  }

  const auto crowd = make_engine(families.config());  // with an empty prefix cache
  ASSERT_NE(crowd, nullptr);
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (const auto& [r, known] : all) {
    sinks.push_back(std::make_shared<Recorder>());
    crowd->submit(r, sinks.back());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const GenerateRequest& r = all[i].request;
    ASSERT_TRUE(sinks[i]->wait().ok()) << sinks[i]->wait();
    EXPECT_EQ(sinks[i]->ids(), alone[i])
        << r.model << ", " << r.method << ", " << r.sampling.temperature.value_or(0);
  }
}

// Learned positions bound the context.
TEST(Families, APromptBeyondLearnedPositionsIsRefused) {
  const Served served("gpt2");
  const auto engine =
      make_engine(testing::real_engine_config("gpt2", served.path(), DType::kFloat32));
  ASSERT_NE(engine, nullptr);
  for (const size_t tokens : {191U, 192U, 193U}) {
    GenerateRequest r = served.request(0, "gpt2");
    r.prompt = std::vector<Token>(tokens, 3);
    r.stopping.max_new_tokens = 1;
    const auto sink = run(*engine, r);
    const absl::StatusCode wanted =
        tokens < 192 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(sink->wait().code(), wanted) << tokens << ": " << sink->wait();
    if (tokens == 191) EXPECT_EQ(sink->ids().size(), 1U);
  }
}

}  // namespace
}  // namespace tandem
#endif
