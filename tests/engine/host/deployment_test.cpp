// The models of a deployment must fit together.
#include "engine/host/deployment.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

// The demo's tokenizer with every `from` replaced by `to`.
std::shared_ptr<const Tokenizer> demo_tokenizer(const std::string& from = "",
                                                const std::string& to = "") {
  std::ostringstream text;
  text << std::ifstream(std::string(TANDEM_SOURCE_DIR) + "/models/code-small/tokenizer.json")
              .rdbuf();
  std::string json = text.str();
  size_t replaced = 0;
  for (size_t at = 0; !from.empty() && (at = json.find(from, at)) != std::string::npos;
       at += to.size()) {
    json.replace(at, from.size(), to);
    ++replaced;
  }
  EXPECT_EQ(replaced > 0, !from.empty()) << from;
  const test::TempDir folder;
  std::ofstream(folder.path() + "/tokenizer.json") << json;
  auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

class Deployments : public ::testing::Test {
 protected:
  Deployments() {
    for (const char* name : {"big", "little"}) {
      LoadedModel& m = models_[name];
      m.config.name = name;
      m.shape.vocab_size = 4096;
      m.shape.layers = 4;
      m.shape.max_positions = 128;
      m.pool.pages = 100;
      m.tokenizer = demo_tokenizer();
    }
    DeploymentConfig& pair = config_.deployments.emplace_back();
    pair.name = "pair";
    pair.large = "big";
    pair.small = "little";
  }

  std::string error() {
    const auto made = make_deployments(config_, models_, &metrics_);
    if (made.ok()) return "no error";
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  }

  EngineConfig config_;
  std::map<std::string, LoadedModel> models_;
  Metrics metrics_;
};

constexpr char kPair[] = "deployments[pair].small: \"little\" and large \"big\" have different ";
constexpr char kRule[] =
    "; allowed: one shared vocabulary, followed in one of them by at most 128 ids of padding";

TEST_F(Deployments, APairWithOneVocabularyHasASeriesForEachMethod) {
  const auto made = make_deployments(config_, models_, &metrics_);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(metrics_.series.size(), 4U);
  for (const MethodInfo& m : made->front().methods) {
    EXPECT_EQ(made->front().series.at(m.method)->method, m.method);
  }
}

TEST_F(Deployments, AdaptersHaveSeriesAndStatisticsOfTheirOwn) {
  models_["big"].shape.loras = {{"sql", 8, 1000}, {"law", 16, 2000}};
  config_.deployments[0].adapters = {{"law", LoraId(1)}, {"sql", LoraId(0)}};
  const auto made = make_deployments(config_, models_, &metrics_);
  ASSERT_TRUE(made.ok()) << made.status();
  const Deployment& d = made->front();
  const auto series = metrics_.adapters.all();
  ASSERT_EQ(series.size(), 2U);
  EXPECT_EQ(series[0]->model, "pair");
  EXPECT_EQ(series[0]->adapter, "law");
  EXPECT_EQ(d.adapters->find("sql")->series, series[1]);
  EXPECT_EQ(d.adapters->find("big"), nullptr);
  const std::set<const AcceptanceStats*> all = {
      d.acceptance_of(LoraId()).get(), d.acceptance_of(LoraId(0)).get(),
      d.acceptance_of(LoraId(1)).get(), d.conditioned_of(LoraId()).get(),
      d.conditioned_of(LoraId(0)).get()};
  EXPECT_EQ(all.size(), 5U);
  EXPECT_EQ(d.acceptance_of(LoraId()), d.acceptance_stats);
  const std::vector<AdapterInfo> infos = d.info().adapters;
  ASSERT_EQ(infos.size(), 2U);
  EXPECT_EQ(infos[0].name, "law");
  EXPECT_EQ(infos[0].rank, 16);
  EXPECT_EQ(infos[1].bytes, 1000);
}

TEST_F(Deployments, ModelsWithShardsAreNotUnloaded) {
  models_["little"].config.shards = {{"cpu:0", 1}, {"cpu:1", 3}};
  EXPECT_EQ(error(), "no error");
  config_.deployments[0].unload_after_idle_seconds = 10;
  EXPECT_EQ(error(),
            "deployments[pair].unload_after_idle_seconds: 10; allowed: 0, as model little has "
            "shards");
}

TEST_F(Deployments, AdaptersOfTheConfigurationFitItsLimits) {
  models_["big"].shape.loras = {{"sql", 8, 1000}, {"law", 16, 2000}};
  DeploymentConfig& pair = config_.deployments[0];
  pair.adapters = {{"law", LoraId(1)}, {"sql", LoraId(0)}};
  const auto refusal = [&] {
    return std::string(make_deployments(config_, models_, &metrics_).status().message());
  };
  pair.adapter_memory_bytes = 3000;
  pair.max_adapters = 2;
  EXPECT_EQ(refusal(), "");
  pair.adapter_memory_bytes = 2999;
  EXPECT_EQ(refusal(),
            "deployments[pair].adapters: 2 adapters with 3000 bytes; allowed: 2999 bytes "
            "(adapter_memory_bytes), 2 adapters (max_adapters)");
  pair.adapter_memory_bytes = 0;
  pair.max_adapters = 1;
  EXPECT_EQ(refusal(),
            "deployments[pair].adapters: 2 adapters with 3000 bytes; allowed: 1 adapters "
            "(max_adapters)");
}

TEST_F(Deployments, AdaptersNeedADecoderThatHasLoadedThem) {
  config_.deployments[0].adapters = {{"law", LoraId(1)}};
  models_["big"].shape.loras = {{"sql", 8, 1000}};
  EXPECT_EQ(error(),
            "deployments[pair].adapters: \"law\"; allowed: the adapters that big has loaded: 1");
  config_.deployments[0].small = "";
  models_["big"].shape.embeds_only = true;
  EXPECT_EQ(error(), "deployments[pair].adapters: 1; allowed: none, as big only embeds");
  models_["big"].encoder = &models_["little"];
  EXPECT_EQ(error(), "deployments[pair].adapters: 1; allowed: none, as big has an encoder");
}

TEST_F(Deployments, NamesTheFirstTokenThatDiffersAndBothItsTexts) {
  models_["little"].tokenizer = demo_tokenizer("<|endoftext|>", "<|eof|>");
  EXPECT_EQ(error(),
            std::string(kPair) + "tokens for id 0 (\"<|eof|>\", \"<|endoftext|>\")" + kRule);
}

TEST_F(Deployments, ATokenThatOnlyOneOfThemHasDiffers) {
  const std::string extra =
      "\"added_tokens\":[{\"id\": 4096, \"content\": \"<|more|>\", \"single_word\": false, "
      "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, ";
  models_["little"].tokenizer = demo_tokenizer("\"added_tokens\":[", extra);
  EXPECT_EQ(error(), std::string(kPair) + "tokens for id 4096 (\"<|more|>\", \"\")" + kRule);
  std::swap(models_["little"].tokenizer, models_["big"].tokenizer);
  EXPECT_EQ(error(), std::string(kPair) + "tokens for id 4096 (\"\", \"<|more|>\")" + kRule);
}

// One model may have more ids of padding than the other.
TEST_F(Deployments, APairMayDifferByPadding) {
  for (const char* padded : {"little", "big"}) {
    models_["little"].shape.vocab_size = models_["big"].shape.vocab_size = 4096;
    models_[padded].shape.vocab_size = 4096 + 128;
    const auto made = make_deployments(config_, models_, &metrics_);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->front().vocab_size, 4096);
    EXPECT_EQ(made->front().info().vocab_size, 4096);
  }
  models_["little"].shape.vocab_size = 4096 + 129;
  models_["big"].shape.vocab_size = 4096;
  EXPECT_EQ(error(), std::string(kPair) + "vocabulary sizes (4225, 4096)" + kRule);
}

TEST_F(Deployments, IdsThatOneModelLacksMustBePadding) {
  models_["little"].shape.vocab_size = 4090;
  EXPECT_EQ(error().find(std::string(kPair) +
                         "vocabulary sizes (4090, 4096), and id 4090 is not padding but \""),
            0U);
}

TEST_F(Deployments, APaddedModelWithoutAPairDropsItsPadding) {
  models_["big"].shape.vocab_size = 5000;
  config_.deployments[0].small.clear();
  const auto made = make_deployments(config_, models_, &metrics_);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->front().vocab_size, 4096);
}

TEST_F(Deployments, EarlyExitIsBelowTheTop) {
  config_.deployments[0].methods["bild"] = {{"early_exit_layer", 3}};
  EXPECT_EQ(error(), "no error");
  config_.deployments[0].methods["bild"] = {{"early_exit_layer", 4}};
  EXPECT_EQ(error(),
            "deployments[pair].bild.early_exit_layer: 4; allowed: [1, 3], below the large "
            "model's layers");
}

// A worker on a device queue of the large model's GPU works, but does not speed up.
TEST_F(Deployments, PpdWorkersThatShareAGpuAreReported) {
  models_["big"].config.device = "cuda:0";
  for (const auto& [name, device] : {std::pair{"device queue", "cuda:0/1"}, {"other", "cuda:1"}}) {
    LoadedModel& worker = models_[name];
    worker = models_["big"];
    worker.config.name = name;
    worker.config.device = device;
    worker.shape.layers = 2;
  }
  config_.deployments[0].methods["ppd"] = {
      {"exit_layer", int64_t{2}}, {"workers", std::vector<std::string>{"device queue", "other"}}};
  const auto notes = [this] {
    return make_deployments(config_, models_, &metrics_)->front().notices;
  };
  ASSERT_EQ(error(), "no error");
  EXPECT_EQ(notes(),
            (std::vector<std::string>{
                "deployments[pair].ppd: worker device queue shares cuda:0 with model big: no "
                "speed-up is to be expected"}));
  models_["big"].config.device = "cpu:0";
  models_["device queue"].config.device = "cpu:0/1";  // threads of its own
  EXPECT_TRUE(notes().empty());
}

// A large vocabulary in merge order, whose output matrix is a large part of a small model.
TEST_F(Deployments, DraftsAreAmongFrequentTokensIfThatSavesMuch) {
  const auto tokenizer = demo_tokenizer();
  const auto ids = [&](int vocabulary, int hidden, int64_t parameters) {
    ModelShape shape;
    shape.vocab_size = vocabulary;
    shape.hidden_size = hidden;
    shape.parameters = parameters;
    return draft_vocabulary_of(shape, *tokenizer);
  };
  EXPECT_EQ(ids(151936, 896, 630'000'000), 32768) << "Qwen2.5 0.5B";
  EXPECT_EQ(ids(151936, 896, 7'000'000'000), 0) << "little would be spared";
  EXPECT_EQ(ids(49152, 576, 135'000'000), 0) << "not many tokens";
  const auto bytes = Tokenizer::bytes();
  ModelShape shape;
  shape.vocab_size = 151936;
  shape.hidden_size = 896;
  shape.parameters = 630'000'000;
  EXPECT_EQ(draft_vocabulary_of(shape, *bytes), 0) << "no merges";

  const auto made = make_deployments(config_, models_, &metrics_);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->front().draft_vocabulary, 0);
  EXPECT_EQ(made->front().early_vocabulary, 0);
  EXPECT_NE(made->front().acceptance_stats, nullptr) << "requests share their statistics";
}

}  // namespace
}  // namespace tandem
