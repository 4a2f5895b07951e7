#include "engine/host/config/config.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "engine/host/config/settings_proto.h"
#include "engine/host/methods/registry.h"
#include "engine/text/tool_format.h"
#include "tandem/config/v1/deployment.pb.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ + "/deploy");
    std::filesystem::create_directories(folder_ + "/models/big");
    std::filesystem::create_directories(folder_ + "/models/little");
  }

  absl::StatusOr<EngineConfig> parse(const std::string& text) const {
    return parse_deployment(text, folder_ + "/deploy/d.textproto");
  }
  // The error message without the folder.
  std::string error(const std::string& text) const {
    const auto result = parse(text);
    if (result.ok()) return "no error";
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    std::string message(result.status().message());
    for (size_t at; (at = message.find(folder_)) != std::string::npos;) {
      message.erase(at, folder_.size());
    }
    return message;
  }

  const test::TempDir dir_;
  const std::string folder_ = dir_.path();
};

TEST(DeployFolder, ItsFilesAreDeployments) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(TANDEM_SOURCE_DIR) + "/deploy")) {
    if (entry.path().extension() != ".textproto") continue;
    ++files;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    config::v1::Config config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text.str(), &config)) << entry.path();
  }
  EXPECT_GE(files, 4);
}

TEST_F(ConfigTest, RowsOfABatchDependOnTheDevices) {
  const auto rows = [&](const std::string& devices, const std::string& first,
                        const std::string& limits = "") {
    const auto config = parse(devices + R"( models { name: "m" path: "../models/big" device: ")" +
                              first + "\" } " + limits);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? std::pair(config->limits.step_rows, config->limits.prefill_chunk_rows)
                       : std::pair(0, 0);
  };
  const std::string gpu = R"(devices { name: "cuda:0" })";
  const std::string cpu = R"(devices { name: "cpu:0" })";
  EXPECT_EQ(rows("", "cpu:0"), std::pair(512, 256));
  EXPECT_EQ(rows("", "cuda:0"), std::pair(4096, 2048));
  EXPECT_EQ(rows(cpu, "cpu:0"), std::pair(512, 256));
  EXPECT_EQ(rows(gpu, "cuda:0"), std::pair(4096, 2048));
  EXPECT_EQ(rows(gpu + cpu, "cuda:0"), std::pair(512, 256));
  EXPECT_EQ(rows(gpu, "cuda:0", "limits { step_rows: 600 }"), std::pair(600, 2048));
  EXPECT_EQ(rows(gpu, "cuda:0", "limits { prefill_chunk_rows: 100 }"), std::pair(4096, 100));
}

TEST_F(ConfigTest, ReadsEveryField) {
  const auto config = parse(R"(
      devices { name: "cpu:0" threads: 2 memory_bytes: 1000000 pin_threads: true cpu_kernels: CPU_KERNELS_ATEN }
      devices { name: "cpu:1" }
      models { name: "big" path: "../models/big" device: "cpu:1" dtype: DTYPE_BF16 page_rows: 32
               kv_pages: 100 kv_dtype: DTYPE_BF16 adapter_dtype: DTYPE_FP16 prefix_cache: false }
      models { name: "little" fake { vocab_size: 300 layers: 2 max_positions: 64 pass_seconds: 0.5
                                     row_seconds: 0.25 seed: 9 trace_file: "/t"
                                     check_memory: false answers: "a" answers: "b"
                                     chat_template: "t" } }
      deployments { name: "pair" large: "big" small: "little" prefix_cache_per_client: true history_tokens: 0
                    tool_format: TOOL_FORMAT_MISTRAL unload_after_idle_seconds: 12.5
                    reasoning_format: REASONING_FORMAT_THINK_TOKEN }
      limits { preemption: PREEMPTION_YOUNGEST max_running: 1 max_waiting: 2 max_waiting_tokens: 3 step_rows: 4
               prefill_chunk_rows: 5 max_new_tokens: 6 default_max_new_tokens: 7
               queue_seconds: 8.5 max_choices: 9 fair_prompt_weight: 0.5 fair_token_weight: 4
               client_weights { key: "ann" value: 2.5 } slow_reader_hold_seconds: 0
               stalled_stream_seconds: 11 max_waiting_bytes: 65536 max_waiting_per_client: 12
               default_client { max_priority: -1 requests_per_minute: 60 }
               clients { key: "ann" value { max_priority: 5 max_requests: 6
                                            tokens_per_minute: 7.5 } } }
      text_threads: 3 tokenize_threads: 4)");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->devices.size(), 2u);
  EXPECT_EQ(config->devices[0], (DeviceConfig{.threads = 2,
                                              .memory_bytes = 1000000,
                                              .pin_threads = true,
                                              .cpu_kernels = CpuKernels::kAten}));
  EXPECT_EQ(config->devices[1], DeviceConfig{.index = 1});
  ASSERT_EQ(config->models.size(), 2u);
  const ModelConfig& big = config->models[0];
  EXPECT_EQ(big.name, "big");
  EXPECT_EQ(big.path, folder_ + "/models/big");
  EXPECT_EQ(big.device, "cpu:1");
  EXPECT_EQ(big.dtype, DType::kBFloat16);
  EXPECT_EQ(big.page_rows, 32);
  EXPECT_EQ(big.kv_pages, 100);
  EXPECT_FALSE(big.prefix_cache);
  EXPECT_TRUE(config->models[1].prefix_cache);
  EXPECT_EQ(big.kv_dtype, DType::kBFloat16);
  EXPECT_EQ(big.adapter_dtype, DType::kFloat16);
  EXPECT_EQ(config->models[1].adapter_dtype, DType::kAuto);
  EXPECT_FALSE(big.fake.has_value());
  const FakeModelConfig& fake = config->models[1].fake.value();
  EXPECT_EQ(fake.vocab_size, 300);
  EXPECT_EQ(fake.layers, 2);
  EXPECT_EQ(fake.max_positions, 64);
  EXPECT_EQ(fake.pass_seconds, 0.5);
  EXPECT_EQ(fake.row_seconds, 0.25);
  EXPECT_EQ(fake.seed, 9u);
  EXPECT_EQ(fake.trace_file, "/t");
  EXPECT_FALSE(fake.check_memory);
  EXPECT_EQ(fake.answers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(fake.chat_template, "t");
  EXPECT_EQ(config->models[1].device, "cpu:0");
  ASSERT_EQ(config->deployments.size(), 1u);
  EXPECT_EQ(config->deployments[0].name, "pair");
  EXPECT_EQ(config->deployments[0].large, "big");
  EXPECT_EQ(config->deployments[0].small, "little");
  EXPECT_TRUE(config->deployments[0].prefix_cache_per_client);
  EXPECT_EQ(config->deployments[0].history_tokens, 0);
  EXPECT_EQ(config->deployments[0].tool_format, "mistral");
  EXPECT_EQ(config->deployments[0].unload_after_idle_seconds, 12.5);
  EXPECT_EQ(config->deployments[0].reasoning_open, "[THINK]");
  EXPECT_EQ(config->deployments[0].reasoning_close, "[/THINK]");
  const LimitsConfig& limits = config->limits;
  EXPECT_EQ(limits.preemption, Preemption::kYoungest);
  EXPECT_EQ(limits.max_running, 1);
  EXPECT_EQ(limits.max_waiting, 2);
  EXPECT_EQ(limits.max_waiting_tokens, 3);
  EXPECT_EQ(limits.step_rows, 4);
  EXPECT_EQ(limits.prefill_chunk_rows, 5);
  EXPECT_EQ(limits.max_new_tokens, 6);
  EXPECT_EQ(limits.default_max_new_tokens, 7);
  EXPECT_EQ(limits.queue_seconds, 8.5);
  EXPECT_EQ(limits.max_choices, 9);
  EXPECT_EQ(limits.fair_prompt_weight, 0.5);
  EXPECT_EQ(limits.fair_token_weight, 4);
  EXPECT_EQ(limits.client_weights, (std::map<std::string, double>{{"ann", 2.5}}));
  EXPECT_EQ(limits.slow_reader_hold_seconds, 0);
  EXPECT_EQ(limits.stalled_stream_seconds, 11);
  EXPECT_EQ(limits.max_waiting_bytes, 65536);
  EXPECT_EQ(limits.max_waiting_per_client, 12);
  EXPECT_EQ(limits.default_client, (ClientLimits{.max_priority = -1, .requests_per_minute = 60}));
  // Unset limits of ann are those of default_client.
  EXPECT_EQ(limits.clients, (std::map<std::string, ClientLimits>{{"ann",
                                                                  {.max_priority = 5,
                                                                   .max_requests = 6,
                                                                   .requests_per_minute = 60,
                                                                   .tokens_per_minute = 7.5}}}));
  EXPECT_EQ(config->text_threads, 3);
  EXPECT_EQ(config->tokenize_threads, 4);
}

DeploymentConfig pair_without_settings() {
  DeploymentConfig pair;
  pair.large = "l";
  pair.small = "s";
  return pair;
}

TEST_F(ConfigTest, DefaultsOfMethods) {
  const auto config = parse(R"(
      models { name: "l" fake {} } models { name: "s" fake {} }
      deployments {
        name: "pair" large: "l" small: "s" default_method: METHOD_BILD
        speculative { draft_tokens: 9 pace: PACE_ADAPTIVE min_draft_probability: 0.25
                      acceptance: ACCEPTANCE_RATIO draft_vocabulary: 16384 adapter: "masks"
                      num_masks: 2 }
        ngram { max_ngram: 2 }
        bild { fallback_threshold: 0 rollback_threshold: inf max_small_run: 0 verify_eos: false
               early_exit_layer: 2 }
      }
      deployments { name: "plain" large: "l" default_method: METHOD_NGRAM }
      deployments {
        name: "exits" large: "l" default_method: METHOD_BILD bild { early_exit_layer: 1 }
      })");
  ASSERT_TRUE(config.ok()) << config.status();
  const DeploymentConfig& pair = config->deployments[0];
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(pair.default_method, "bild");
  EXPECT_EQ(pair.methods.at("speculative"), (Settings{{"draft_tokens", 9},
                                                      {"pace", "PACE_ADAPTIVE"},
                                                      {"min_draft_probability", 0.25},
                                                      {"acceptance", "ACCEPTANCE_RATIO"},
                                                      {"draft_vocabulary", 16384},
                                                      {"adapter", "masks"},
                                                      {"num_masks", 2}}));
  EXPECT_EQ(pair.methods.at("ngram"), (Settings{{"max_ngram", 2}}));
  EXPECT_EQ(pair.methods.at("bild"), (Settings{{"fallback_threshold", 0.0},
                                               {"rollback_threshold", kInf},
                                               {"max_small_run", 0},
                                               {"verify_eos", false},
                                               {"early_exit_layer", 2}}));
  const DeploymentConfig& plain = config->deployments[1];
  EXPECT_EQ(plain.default_method, "ngram");
  EXPECT_TRUE(plain.methods.empty());
  // The defaults that the schema documents.
  const auto defaults = [&](const char* method) {
    return find_method(method)->with(pair_without_settings(), {})->settings();
  };
  EXPECT_EQ(defaults("speculative"), (Settings{{"draft_tokens", 4},
                                               {"pace", "PACE_FIXED"},
                                               {"min_draft_probability", 0.0},
                                               {"adapter", ""},
                                               {"acceptance", "ACCEPTANCE_MATCH"}}));
  EXPECT_EQ(defaults("ngram"),
            (Settings{{"draft_tokens", 4}, {"max_ngram", 64}, {"pace", "PACE_FIXED"}}));
  EXPECT_EQ(defaults("bild"), (Settings{{"fallback_threshold", 0.6},
                                        {"rollback_threshold", 5.0},
                                        {"max_small_run", 10},
                                        {"verify_eos", true},
                                        {"adapter", ""},
                                        {"early_exit", false},
                                        {"early_exit_layer", 0}}));
  EXPECT_EQ(config->deployments[2].default_method, "bild");
}

// A field without an entry, or an entry without a field, would be ignored silently.
TEST_F(ConfigTest, TheSchemaAndTheEntriesAgreeOnEveryParameter) {
  const auto* const deployment = config::v1::Deployment::descriptor();
  for (const MethodEntry* method : all_methods()) {
    SCOPED_TRACE(method->name);
    EXPECT_GT(method_number(*config::v1::Deployment::Method_descriptor(), method->name), 0);
    const auto* const section = deployment->FindFieldByName(method->name);
    std::set<std::string> described;
    for (const Field& f : method->fields) {
      if (f.by != Field::By::kRequest) described.insert(f.name);
    }
    std::set<std::string> in_schema;
    for (int i = 0; section && i < section->message_type()->field_count(); ++i) {
      in_schema.insert(section->message_type()->field(i)->name());
    }
    EXPECT_EQ(in_schema, described);
  }
}

// A path relative to the file.
TEST_F(ConfigTest, StatisticsFile) {
  const std::string model = "models { name: \"m\" fake {} } ";
  EXPECT_EQ(parse_deployment(model, "/deploy/d.textproto")->statistics_file, "");
  const auto config =
      parse_deployment(model + "server { statistics_file: \"learned/m\" }", "/deploy/d.textproto");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->statistics_file, "/deploy/learned/m");
}

TEST_F(ConfigTest, PrefixStore) {
  const std::string model = "models { name: \"m\" fake {} } ";
  const auto none = parse_deployment(model, "/deploy/d.textproto");
  EXPECT_EQ(none->prefix_store, "");
  EXPECT_EQ(none->prefix_store_bytes, int64_t{1} << 30);
  const auto config = parse_deployment(
      model + "server { prefix_store: \"kv\" prefix_store_bytes: 1048577 }", "/deploy/d.textproto");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->prefix_store, "/deploy/kv");
  EXPECT_EQ(config->prefix_store_bytes, 1048577);
  const auto small = parse_deployment(model + "server { prefix_store_bytes: 1 }", "f");
  EXPECT_EQ(small.status().message(),
            "f:1: server.prefix_store_bytes: 1; allowed: [1048576, 1099511627776]");
}

// Every format of the schema is one that the parser knows.
TEST_F(ConfigTest, ToolAndReasoningFormats) {
  const auto* const formats = config::v1::Deployment::ToolFormat_descriptor();
  for (int i = 0; i < formats->value_count(); ++i) {
    const auto config = parse(absl::StrCat(R"(models { name: "m" fake {} } deployments { name: "m"
        large: "m" tool_format: )",
                                           formats->value(i)->name(), "}"));
    ASSERT_TRUE(config.ok()) << config.status();
    const std::string& format = config->deployments[0].tool_format;
    EXPECT_EQ(format.empty(), i == 0);
    if (i > 0) EXPECT_TRUE(parse_tool_format(format).has_value()) << format;
  }
  const auto none = parse(R"(models { name: "m" fake {} } deployments { name: "m" large: "m"
      reasoning_format: REASONING_FORMAT_NONE })");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->deployments[0].no_reasoning);
  const auto think = parse(R"(models { name: "m" fake {} } deployments { name: "m" large: "m"
      reasoning_format: REASONING_FORMAT_THINK })");
  ASSERT_TRUE(think.ok()) << think.status();
  EXPECT_EQ(think->deployments[0].reasoning_close, "</think>");
}

TEST_F(ConfigTest, LayersAndExtrasOfAModel) {
  const auto config = parse(R"(models {
    name: "m" path: "../models/big" layers: 3
    extras { name: "head" path: "../models/little" }
    extras { name: "masks" path: "../models/big" }
  })");
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelConfig& model = config->models[0];
  EXPECT_EQ(model.layers, 3);
  ASSERT_EQ(model.extras.size(), 2u);
  EXPECT_EQ(model.extras[0].name, "head");
  EXPECT_TRUE(model.extras[0].path.ends_with("models/little"));
  EXPECT_EQ(model.extras[1].name, "masks");
}

TEST_F(ConfigTest, DeploymentsOfAModelShareItsAdapters) {
  const auto config = parse(R"(
    models { name: "m" path: "../models/big" } models { name: "s" path: "../models/little" }
    deployments { name: "a" large: "m"
      adapters { name: "sql" path: "../models/little" } adapters { name: "law" path: "../deploy" } }
    deployments { name: "b" large: "m" small: "s"
      adapters { name: "law" path: "../deploy/" } adapters { name: "sql" path: "../models/big" } }
  )");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::vector<ExtraConfig>& loras = config->models[0].loras;
  ASSERT_EQ(loras.size(), 3U) << "each path once";
  EXPECT_TRUE(loras[0].path.ends_with("models/little"));
  EXPECT_TRUE(loras[1].path.ends_with("deploy"));
  EXPECT_TRUE(loras[2].path.ends_with("models/big"));
  EXPECT_TRUE(config->models[1].loras.empty());
  const auto ids = [&](size_t deployment) {
    std::vector<std::pair<std::string, int>> out;
    for (const AdapterConfig& a : config->deployments[deployment].adapters) {
      out.emplace_back(a.name, a.id.value);
    }
    return out;
  };
  using Ids = std::vector<std::pair<std::string, int>>;
  EXPECT_EQ(ids(0), (Ids{{"sql", 0}, {"law", 1}}));
  EXPECT_EQ(ids(1), (Ids{{"law", 1}, {"sql", 2}}));
}

TEST_F(ConfigTest, FakeModelsHaveAdaptersWithoutFiles) {
  const auto config = parse(R"(models { name: "m" fake {} }
    deployments { name: "a" large: "m" adapters { name: "x" } adapters { name: "y" } }
    deployments { name: "b" large: "m" adapters { name: "y" } })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].loras.size(), 2U);
  EXPECT_EQ(config->deployments[1].adapters[0].id, LoraId(1));
}

TEST_F(ConfigTest, WrongAdapters) {
  const auto with = [this](const std::string& adapters, const std::string& model = "") {
    return error("models { name: \"m\" " + (model.empty() ? "path: \"../models/big\"" : model) +
                 " }\ndeployments { name: \"d\" large: \"m\"\n" + adapters + "\n}");
  };
  const std::string file = "/deploy/d.textproto:3: deployments[0].adapters";
  EXPECT_EQ(with("adapters { name: \"a:b\" path: \".\" }"),
            file + "[0].name: \"a:b\"; allowed: 1 to 64 of letters, digits and . _ - /");
  EXPECT_EQ(with("adapters { path: \".\" }"),
            file + "[0].name: \"\"; allowed: 1 to 64 of letters, digits and . _ - /");
  EXPECT_EQ(with("adapters { name: \"a\" path: \".\" } adapters { name: \"a\" path: \".\" }"),
            file + "[1].name: \"a\"; allowed: a name that no other adapter of the deployment has");
  EXPECT_EQ(with("adapters { name: \"d\" path: \".\" }"),
            file + "[0].name: \"d\"; allowed: a name that no deployment has");
  EXPECT_EQ(with("adapters { name: \"a\" }"),
            file + "[0].path: \"\"; allowed: a directory or a .gguf file that exists");
  EXPECT_EQ(with("adapters { name: \"a\" path: \"none\" }"),
            file + "[0].path: \"/deploy/none\"; allowed: a directory or a .gguf file that exists");
  EXPECT_EQ(with("adapters { name: \"a\" path: \"x\" }", "fake {}"),
            file + "[0].path: \"x\"; allowed: unset for a fake model");
}

TEST_F(ConfigTest, AdaptersByFlags) {
  ModelFlags flags;
  flags.models = {"m=" + folder_ + "/models/big"};
  flags.adapters = {"sql=" + folder_ + "/models/little", folder_ + "/deploy"};
  const auto config = from_models(flags);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->models[0].loras.size(), 2U);
  EXPECT_EQ(config->deployments[0].adapters[0].name, "sql");
  EXPECT_EQ(config->deployments[0].adapters[1].name, "deploy");
  EXPECT_EQ(config->deployments[0].adapters[1].id, LoraId(1));
  const auto refused = [&](std::vector<std::string> adapters) {
    flags.adapters = std::move(adapters);
    return std::string(from_models(flags).status().message());
  };
  EXPECT_EQ(refused({"m=" + folder_}),
            "--adapter name: \"m\"; allowed: a name that is not taken already");
  EXPECT_EQ(refused({"a:b=" + folder_}),
            "--adapter name: \"a:b\"; allowed: 1 to 64 of letters, digits and . _ - /");
  EXPECT_EQ(refused({"a=none"}),
            "--adapter a: \"none\"; allowed: a directory or a .gguf file that exists");
  flags.models.push_back("n=" + folder_ + "/models/little");
  EXPECT_EQ(refused({"a=" + folder_}),
            "--adapter: \"a=" + folder_ + "\"; allowed: unset with several --model");
}

TEST_F(ConfigTest, ShardsAreLayersOfTheFirstDeviceAndOfOthers) {
  const auto config = parse(R"(models { name: "m" path: "../models/big"
      shards { device: "cpu:1" layers: 3 } shards { device: "cpu:0" layers: 9 } })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].device, "cpu:1");
  ASSERT_EQ(config->models[0].shards.size(), 2U);
  EXPECT_EQ(config->models[0].shards[1].device, "cpu:0");
  EXPECT_EQ(config->models[0].shards[1].layers, 9);
  EXPECT_EQ(config->devices.size(), 2U);
}

TEST_F(ConfigTest, UnlistedDevicesAreAddedInTheOrderOfShards) {
  const auto config = parse(R"(models { name: "f" path: "../models/big" device: "cpu:0" }
      models { name: "m" path: "../models/big"
               shards { device: "cpu:1" layers: 3 } shards { device: "cpu:0" layers: 9 } })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->devices[0].name(), "cpu:1");
  EXPECT_EQ(config->devices[1].name(), "cpu:0");
}

TEST_F(ConfigTest, ReplicasAreDevicesOfTheirOwn) {
  const auto config =
      parse(R"(models { name: "m" fake {} device: "cpu:2" replicas: ["cpu:0", "cpu:2/1"] })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].replicas, (std::vector<std::string>{"cpu:0", "cpu:2/1"}));
  std::vector<std::string> devices;
  for (const DeviceConfig& d : config->devices) devices.push_back(d.name());
  EXPECT_EQ(devices, (std::vector<std::string>{"cpu:2", "cpu:0", "cpu:2/1"}));
}

TEST_F(ConfigTest, UnsetFieldsKeepTheirDefaults) {
  const auto config = parse(R"(models { name: "m" fake {} })");
  ASSERT_TRUE(config.ok()) << config.status();
  const LimitsConfig defaults;
  EXPECT_EQ(config->limits.max_running, defaults.max_running);
  EXPECT_EQ(config->limits.queue_seconds, defaults.queue_seconds);
  EXPECT_EQ(config->models[0].dtype, DType::kAuto);
  EXPECT_EQ(config->models[0].fake->vocab_size, FakeModelConfig().vocab_size);
  // A device for the model, and a deployment of its name.
  ASSERT_EQ(config->devices.size(), 1u);
  EXPECT_EQ(config->devices[0].name(), "cpu:0");
  ASSERT_EQ(config->deployments.size(), 1u);
  EXPECT_EQ(config->deployments[0].name, "m");
  EXPECT_EQ(config->deployments[0].large, "m");
  EXPECT_EQ(config->deployments[0].small, "");
  EXPECT_FALSE(config->deployments[0].prefix_cache_per_client);
  EXPECT_EQ(config->deployments[0].history_tokens, 1 << 18);
  // Prefixes are per client if clients are authenticated, unless the deployment sets it.
  const std::string model = "models { name: \"m\" fake {} } ";
  const std::string tokens = "server { bearer_token_file: \"t\" } ";
  const std::string certificates = "server { tls { client_ca: \"c\" } } ";
  const std::string shared =
      "deployments { name: \"d\" large: \"m\" prefix_cache_per_client: false }";
  const auto per_client = [](const std::string& text) {
    return parse_deployment(text, "d.textproto")->deployments[0].prefix_cache_per_client;
  };
  EXPECT_TRUE(per_client(model + tokens));
  EXPECT_TRUE(per_client(model + certificates));
  EXPECT_TRUE(per_client(model + tokens + "deployments { name: \"d\" large: \"m\" }"));
  EXPECT_FALSE(per_client(model + tokens + shared));
  EXPECT_TRUE(config->models[0].prefix_cache);
  EXPECT_EQ(config->limits.preemption, Preemption::kLowestPriority);
}

TEST_F(ConfigTest, ErrorsNameFileLineFieldValueAndAllowed) {
  const std::string m = "models { name: \"m\" fake {} }\n";
  const auto sharded = [](const std::string& more) {
    return "devices { name: \"cpu:0\" } devices { name: \"cpu:1\" } devices { name: \"cpu:2\" "
           "cpu_kernels: CPU_KERNELS_ATEN }\nmodels { name: \"m\" path: \"../models/big\" " +
           more + " }";
  };
  const struct {
    std::string text;
    std::string message;  // without the file's folder
  } cases[] = {
      {"models {\n  name: \"m\"\n  pth: \"x\"\n}",
       "/deploy/d.textproto:3:6: Message type \"tandem.config.v1.Model\" has no field named "
       "\"pth\". Allowed: name, path, fake, device, dtype, page_rows, kv_pages, kv_dtype, layers, "
       "extras, replicas, shards, adapter_dtype, prefix_cache."},
      {"models { name: \"m\" path: \"../models/big\" layers: 0 }",
       "/deploy/d.textproto:1: models[0].layers: 0; allowed: [1, 1000]"},
      {"models { name: \"m\" fake {} layers: 2 }",
       "/deploy/d.textproto:1: models[0].layers: 2; allowed: unset for a fake model"},
      {"models { name: \"m\" fake {} extras { name: \"h\" path: \".\" } }",
       "/deploy/d.textproto:1: models[0].extras: 1; allowed: none for a fake model"},
      {"models { name: \"m\" path: \"../models/big\" extras { path: \".\" } }",
       "/deploy/d.textproto:1: models[0].extras[0].name: \"\"; allowed: a name that no other extra "
       "of the model has"},
      {"models { name: \"m\" path: \"../models/big\" extras { name: \"h\" path: \".\" } "
       "extras { name: \"h\" path: \".\" } }",
       "/deploy/d.textproto:1: models[0].extras[1].name: \"h\"; allowed: a name that no other "
       "extra of the model has"},
      {"models { name: \"m\" path: \"../models/big\" extras { name: \"h\" path: \"no\" } }",
       "/deploy/d.textproto:1: models[0].extras[0].path: \"/deploy/no\"; allowed: a directory that "
       "exists"},
      {"models { name: \"m\" fake {} dtype: FP4 }",
       "/deploy/d.textproto:1:39: Unknown enumeration value of \"FP4\" for field \"dtype\". "
       "Allowed: DTYPE_UNSPECIFIED, DTYPE_FP32, DTYPE_BF16, DTYPE_FP64, DTYPE_FP16, DTYPE_INT8, "
       "DTYPE_STORED, DTYPE_INT4, DTYPE_FP8, DTYPE_Q4_0."},
      {"devices { name: \"cuda:0\" pin_threads: true }",
       "/deploy/d.textproto:1: devices[0].pin_threads: true; allowed: unset on a CUDA device"},
      {"devices { name: \"cpu:0\" graphs: false }",
       "/deploy/d.textproto:1: devices[0].graphs: false; allowed: unset on a CPU device"},
      {"devices { name: \"cuda:0\" cpu_kernels: CPU_KERNELS_ATEN }",
       "/deploy/d.textproto:1: devices[0].cpu_kernels: CPU_KERNELS_ATEN; allowed: unset on a CUDA "
       "device"},
      {"models { name: \"m\" fake {} kv_dtype: DTYPE_FP64 }",
       "/deploy/d.textproto:1: models[0].kv_dtype: DTYPE_FP64; allowed: DTYPE_FP32, "
       "DTYPE_BF16"},
      {"models { name: \"m\" fake {} adapter_dtype: DTYPE_INT8 }",
       "/deploy/d.textproto:1: models[0].adapter_dtype: DTYPE_INT8; allowed: DTYPE_FP32, "
       "DTYPE_BF16, DTYPE_FP16"},
      {"models { name: \"m\" fake {} device: \"cuda:0\" adapter_dtype: DTYPE_BF16 }",
       "/deploy/d.textproto:1: models[0].adapter_dtype: DTYPE_BF16; allowed: unset on a CUDA "
       "device"},
      {"models { name: \"m\" fake { check_memory: false } }",
       "/deploy/d.textproto:1: models[0].fake.check_memory: false; allowed: true where there is no "
       "trace_file"},
      {"models { name: \"m\"", "/deploy/d.textproto:1:19: Expected identifier, got: "},
      {"", "/deploy/d.textproto: models: none; allowed: at least one"},
      {"models { fake {} }",
       "/deploy/d.textproto:1: models[0].name: \"\"; allowed: 1 to 64 of letters, digits and . _ - "
       "/"},
      {"models { name: \"a b\" fake {} }",
       "/deploy/d.textproto:1: models[0].name: \"a b\"; allowed: 1 to 64 of letters, digits and . "
       "_ - /"},
      {m + m,
       "/deploy/d.textproto:2: models[1].name: \"m\"; allowed: a name that is not taken already"},
      {m + "models {\n  name: \"n\"\n  path: \"../models/none\"\n}",
       "/deploy/d.textproto:4: models[1].path: \"/models/none\"; allowed: a directory that exists, "
       "or a .gguf file"},
      {"models { name: \"m\" }",
       "/deploy/d.textproto:1: models[0].path: \"\"; allowed: a Hugging Face directory or a GGUF "
       "file (or `fake {}`)"},
      {"models { name: \"m\" fake {} device: \"gpu\" }",
       "/deploy/d.textproto:1: models[0].device: \"gpu\"; allowed: \"cpu:N\" or \"cuda:N\" with N "
       "in [0, 255], or one of these and \"/L\" with L in [1, 15]"},
      {"models { name: \"m\" fake {} device: \"cpu:256\" }",
       "/deploy/d.textproto:1: models[0].device: \"cpu:256\"; allowed: \"cpu:N\" or \"cuda:N\" "
       "with N in [0, 255], or one of these and \"/L\" with L in [1, 15]"},
      {"devices { name: \"cpu:0\" }\nmodels { name: \"m\" fake {} device: \"cpu:1\" }",
       "/deploy/d.textproto:2: models[0].device: \"cpu:1\"; allowed: \"cpu:0\""},
      {"devices { name: \"cpu:0\" }\nmodels { name: \"m\" fake {} replicas: \"cpu:1\" }",
       "/deploy/d.textproto:2: models[0].replicas[0]: \"cpu:1\"; allowed: \"cpu:0\""},
      {"models { name: \"m\" fake {} replicas: \"cpu:1\" replicas: \"tpu:1\" }",
       "/deploy/d.textproto:1: models[0].replicas[1]: \"tpu:1\"; allowed: \"cpu:N\" or \"cuda:N\" "
       "with N in [0, 255], or one of these and \"/L\" with L in [1, 15]"},
      {"models { name: \"m\" fake {} replicas: \"cuda:0\" }",
       "/deploy/d.textproto:1: models[0].replicas[0]: \"cuda:0\"; allowed: devices of one kind, as "
       "cpu:0"},
      {"models { name: \"m\" fake {} replicas: [\"cpu:1\", \"cpu:0\"] }",
       "/deploy/d.textproto:1: models[0].replicas[1]: \"cpu:0\"; allowed: each device once, "
       "`device` "
       "included"},
      {"devices { name: \"cpu:0\" }\ndevices { name: \"cpu:1\" cpu_kernels: CPU_KERNELS_ATEN }\n"
       "models { name: \"m\" fake {} replicas: \"cpu:1\" }",
       "/deploy/d.textproto:3: models[0].replicas[0]: \"cpu:1\"; allowed: devices with the "
       "cpu_kernels of cpu:0"},
      {"models { name: \"m\" fake { trace_file: \"t\" } replicas: \"cpu:1\" }",
       "/deploy/d.textproto:1: models[0].fake.trace_file: \"t\"; allowed: unset for a model with "
       "replicas"},
      {sharded("shards { device: \"cpu:0\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards: 1; allowed: 2 or more, or none"},
      {sharded("shards { device: \"cpu:0\" layers: 1 } shards { device: \"cpu:7\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[1].device: \"cpu:7\"; allowed: \"cpu:0\", "
       "\"cpu:1\", \"cpu:2\""},
      {sharded("shards { device: \"cpu:0\" layers: 1 } shards { device: \"cpu:0\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[1].device: \"cpu:0\"; allowed: each device once"},
      {sharded("shards { device: \"cpu:0\" layers: 1 } shards { device: \"cuda:0\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[1].device: \"cuda:0\"; allowed: CPU devices"},
      {sharded("shards { device: \"gpu\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[0].device: \"gpu\"; allowed: \"cpu:N\" or "
       "\"cuda:N\" "
       "with N in [0, 255], or one of these and \"/L\" with L in [1, 15]"},
      {sharded("shards { device: \"cpu:0\" layers: 0 }"),
       "/deploy/d.textproto:2: models[0].shards[0].layers: 0; allowed: [1, 1000]"},
      {sharded("device: \"cpu:1\" shards { device: \"cpu:0\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[0].device: \"cpu:0\"; allowed: cpu:1, `device`"},
      {sharded("shards { device: \"cpu:1\" layers: 1 } shards { device: \"cpu:0\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[1].device: \"cpu:0\"; allowed: devices listed "
       "behind cpu:1"},
      {sharded("shards { device: \"cpu:0\" layers: 1 } shards { device: \"cpu:2\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards[1].device: \"cpu:2\"; allowed: devices with the "
       "cpu_kernels of cpu:0"},
      {sharded("replicas: \"cpu:1\" shards { device: \"cpu:0\" layers: 1 } "
               "shards { device: \"cpu:1\" layers: 1 }"),
       "/deploy/d.textproto:2: models[0].shards: 2; allowed: none for a model with replicas"},
      {"models { name: \"m\" fake {} shards { device: \"cpu:0\" layers: 1 } shards { device: "
       "\"cpu:1\" layers: 3 } }",
       "/deploy/d.textproto:1: models[0].shards: 2; allowed: none for a fake model"},
      {"devices { name: \"cpu:0\" }\ndevices { name: \"cpu:0\" }\n" + m,
       "/deploy/d.textproto:2: devices[1].name: \"cpu:0\"; allowed: a device that is not listed "
       "already"},
      {"devices { name: \"cuda:0\" threads: 2 }\n" + m,
       "/deploy/d.textproto:1: devices[0].threads: 2; allowed: unset on a CUDA device"},
      {"devices { name: \"cpu:0\" threads: -1 }\n" + m,
       "/deploy/d.textproto:1: devices[0].threads: -1; allowed: [0, 1024]"},
      {"devices { name: \"cpu:0\" memory_bytes: -1 }\n" + m,
       "/deploy/d.textproto:1: devices[0].memory_bytes: -1; allowed: [0, 9223372036854775807]"},
      {m + "deployments { name: \"d\" large: \"x\" }",
       "/deploy/d.textproto:2: deployments[0].large: \"x\"; allowed: \"m\""},
      {m + "deployments { name: \"d\" }",
       "/deploy/d.textproto:2: deployments[0].large: \"\"; allowed: \"m\""},
      {m + "deployments { name: \"d\" large: \"m\" small: \"x\" }",
       "/deploy/d.textproto:2: deployments[0].small: \"x\"; allowed: \"m\""},
      {m + "deployments { name: \"d\" large: \"m\" small: \"m\" }",
       "/deploy/d.textproto:2: deployments[0].small: \"m\"; allowed: a model other than `large`, "
       "or none"},
      {m + "deployments { name: \"d\" large: \"m\" default_method: METHOD_BILD }",
       "/deploy/d.textproto:2: deployments[0].default_method: METHOD_BILD; allowed: "
       "METHOD_NGRAM, METHOD_AUTOREGRESSIVE (bild needs a `small` model or "
       "`bild.early_exit_layer`)"},
      {m + "deployments { name: \"d\" large: \"m\" default_method: METHOD_SPECULATIVE }",
       "/deploy/d.textproto:2: deployments[0].default_method: METHOD_SPECULATIVE; allowed: "
       "METHOD_NGRAM, METHOD_AUTOREGRESSIVE (speculative needs a `small` model)"},
      {m + "deployments { name: \"d\" large: \"m\" default_method: METHOD_BITA }",
       "/deploy/d.textproto:2: deployments[0].default_method: METHOD_BITA; allowed: "
       "METHOD_NGRAM, METHOD_AUTOREGRESSIVE (bita needs `bita.adapter`, masks among the large "
       "model's extras)"},
      {m + "deployments { name: \"d\" large: \"m\" history_tokens: 16777217 }",
       "/deploy/d.textproto:2: deployments[0].history_tokens: 16777217; allowed: [0, 16777216]"},
      {m + "deployments { name: \"d\" large: \"m\" history_tokens: -1 }",
       "/deploy/d.textproto:2: deployments[0].history_tokens: -1; allowed: [0, 16777216]"},
      {m + "deployments { name: \"d\" large: \"m\" ppd { num_candidates: 0 } }",
       "/deploy/d.textproto:2: deployments[0].ppd.num_candidates: 0; allowed: [1, 16]"},
      {m + "deployments { name: \"d\" large: \"m\" ppd { num_candidates: 17 } }",
       "/deploy/d.textproto:2: deployments[0].ppd.num_candidates: 17; allowed: [1, 16]"},
      {m + "deployments { name: \"d\" large: \"m\" ppd { draft_vocabulary: -1 } }",
       "/deploy/d.textproto:2: deployments[0].ppd.draft_vocabulary: -1; allowed: [0, 16777216]"},
      {m + "deployments { name: \"d\" large: \"m\" speculative { draft_tokens: 65 } }",
       "/deploy/d.textproto:2: deployments[0].speculative.draft_tokens: 65; allowed: [1, 64]"},
      {m + "deployments { name: \"d\" large: \"m\" speculative { min_draft_probability: nan } }",
       "/deploy/d.textproto:2: deployments[0].speculative.min_draft_probability: nan; allowed: "
       "[0, 1]"},
      {m + "deployments { name: \"d\" large: \"m\" bild { fallback_threshold: 2.5 } }",
       "/deploy/d.textproto:2: deployments[0].bild.fallback_threshold: 2.5; allowed: [0, 2]"},
      {m + "deployments { name: \"d\" large: \"m\" bild { rollback_threshold: -1 } }",
       "/deploy/d.textproto:2: deployments[0].bild.rollback_threshold: -1; allowed: [0, inf]"},
      {m + "deployments { name: \"d\" large: \"m\" bild { max_small_run: 4097 } }",
       "/deploy/d.textproto:2: deployments[0].bild.max_small_run: 4097; allowed: [0, 4096]"},
      {m + "deployments { name: \"d\" large: \"m\" bild { early_exit_layer: 0 } }",
       "/deploy/d.textproto:2: deployments[0].bild.early_exit_layer: 0; allowed: [1, 1023]"},
      {m + "deployments { name: \"d\" large: \"m\" }\ndeployments { name: \"d\" large: \"m\" }",
       "/deploy/d.textproto:3: deployments[1].name: \"d\"; allowed: a name that is not taken "
       "already"},
      {"models { name: \"m\" fake { vocab_size: 256 } }",
       "/deploy/d.textproto:1: models[0].fake.vocab_size: 256; allowed: [257, 1048576]"},
      {"models { name: \"m\" fake { pass_seconds: nan } }",
       "/deploy/d.textproto:1: models[0].fake.pass_seconds: nan; allowed: [0, 60]"},
      {"models { name: \"m\" fake {} page_rows: 0 }",
       "/deploy/d.textproto:1: models[0].page_rows: 0; allowed: [1, 1024]"},
      {m + "limits { max_running: 0 }",
       "/deploy/d.textproto:2: limits.max_running: 0; allowed: [1, 65536]"},
      {m + "limits { max_choices: 17 }",
       "/deploy/d.textproto:2: limits.max_choices: 17; allowed: [1, 16]"},
      {m + "limits { client_weights { key: \"ann\" value: 0 } }",
       "/deploy/d.textproto:2: limits.client_weights[\"ann\"]: 0; allowed: [0.001, 1000]"},
      {m + "limits {\n  queue_seconds: inf\n}",
       "/deploy/d.textproto:3: limits.queue_seconds: inf; allowed: [0.001, 86400]"},
      {m + "limits { clients { key: \"ann\" value { max_priority: 101 } } }",
       "/deploy/d.textproto:2: limits.clients[\"ann\"].max_priority: 101; allowed: [-100, 100]"},
      {m + "limits { default_client { requests_per_minute: nan } }",
       "/deploy/d.textproto:2: limits.default_client.requests_per_minute: nan; allowed: [0, "
       "1e+09]"},
      {m + "limits { max_waiting_bytes: 1 }",
       "/deploy/d.textproto:2: limits.max_waiting_bytes: 1; allowed: [65536, 1099511627776]"},
      {m + "text_threads: 65", "/deploy/d.textproto:2: text_threads: 65; allowed: [1, 64]"},
  };
  for (const auto& c : cases) EXPECT_EQ(error(c.text), c.message) << c.text;
}

TEST_F(ConfigTest, FilesThatCannotBeRead) {
  const auto missing = load_deployment(folder_ + "/none.textproto");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(missing.status().message()),
            folder_ + "/none.textproto: cannot read: No such file or directory");
  EXPECT_FALSE(load_deployment(folder_).ok());

  const std::string huge = folder_ + "/huge.textproto";
  std::ofstream(huge) << std::string((4 << 20) + 1, '#');
  EXPECT_EQ(std::string(load_deployment(huge).status().message()),
            huge + ": 4194305 bytes; allowed: at most 4194304 in a deployment file");
}

TEST_F(ConfigTest, LoadsAFile) {
  const std::string path = folder_ + "/deploy/d.textproto";
  std::ofstream(path) << "models { name: \"big\" path: \"../models/big\" }\n";
  const auto config = load_deployment(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].path, folder_ + "/models/big");
}

TEST_F(ConfigTest, DirectoriesWithOneGgufModel) {
  const std::string one = dir_.write("one/Model.Q4-00001-of-00002.gguf", "");
  dir_.write("one/Model.Q4-00002-of-00002.gguf", "");
  dir_.write("one/mmproj-f16.gguf", "");
  const auto config = from_models({{folder_ + "/one", folder_ + "/models/big/"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].name, "one");
  EXPECT_EQ(config->models[0].path, one);
  EXPECT_EQ(config->models[1].name, "big");
  const auto file = parse("models { name: \"m\" path: \"../one\" }");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(std::filesystem::weakly_canonical(file->models[0].path), one);
  const auto named = from_models({{one}});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->models[0].name, "Model.Q4-00001-of-00002");

  const std::string other = dir_.write("one/other.gguf", "");
  EXPECT_EQ(from_models({{"m=" + folder_ + "/one"}}).status().message(),
            absl::StrCat("--model m: \"", folder_, "/one\"; allowed: one of its .gguf files: ", one,
                         ", ", other));
  dir_.write("one/config.json", "{}");  // a Hugging Face directory
  EXPECT_EQ(from_models({{folder_ + "/one"}})->models[0].path, folder_ + "/one");
}

TEST_F(ConfigTest, PlacesOfFetchedModels) {
  const std::string text = "models { name: \"m\" path: \"hf://a/b:Q8_0\" }";
  EXPECT_THAT(error(text), ::testing::HasSubstr("allowed: hf://ORG/REPO[@REVISION][:QUANT], in a "
                                                "file that tandem-server reads"));
  auto file = ConfigFile::parse(text, folder_ + "/deploy/d.textproto");
  ASSERT_TRUE(file.ok()) << file.status();
  file->set_place("hf://a/b:Q8_0", folder_ + "/models/big");
  const auto config = engine_config(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->models[0].path, folder_ + "/models/big");
}

TEST_F(ConfigTest, ModelFlags) {
  const auto config =
      from_models({{"a=" + folder_ + "/models/big", "b=" + folder_}, "cpu:2", "fp64"});
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->models.size(), 2u);
  EXPECT_EQ(config->models[1].device, "cpu:2");
  EXPECT_EQ(config->models[1].dtype, DType::kFloat64);
  ASSERT_EQ(config->devices.size(), 1u);
  EXPECT_EQ(config->deployments[1].name, "b");
  EXPECT_EQ(config->devices[0].cpu_kernels, CpuKernels::kOwn);
  const auto int8 = from_models({{"a=" + folder_}, "cpu:0", "int8", "aten"});
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->models[0].dtype, DType::kInt8);
  EXPECT_EQ(int8->devices[0].cpu_kernels, CpuKernels::kAten);
  EXPECT_EQ(parse_dtype("bfloat16").value(), DType::kBFloat16);
  EXPECT_EQ(parse_dtype("fp16").value(), DType::kFloat16);

  ModelFlags both{{"big=" + folder_}};
  both.small = folder_ + "/models/little";
  const auto tandem = from_models(both);
  ASSERT_TRUE(tandem.ok()) << tandem.status();
  ASSERT_EQ(tandem->deployments.size(), 1U);
  EXPECT_EQ(tandem->deployments[0].name, "big");
  EXPECT_EQ(tandem->deployments[0].large, "big");
  EXPECT_EQ(tandem->deployments[0].small, "small");
  EXPECT_EQ(tandem->deployments[0].default_method, "") << "auto";
  EXPECT_EQ(tandem->models[1].path, both.small);
  ModelFlags masked = both;
  masked.small_masks = folder_;
  const auto with_masks = from_models(masked);
  ASSERT_TRUE(with_masks.ok()) << with_masks.status();
  EXPECT_EQ(with_masks->models[0].extras.size(), 0U);
  ASSERT_EQ(with_masks->models[1].extras.size(), 1U);
  EXPECT_EQ(with_masks->models[1].extras[0].path, folder_);
  for (const char* method : {"speculative", "bild"}) {
    EXPECT_EQ(with_masks->deployments[0].methods.at(method),
              (Settings{{"adapter", with_masks->models[1].extras[0].name}}));
  }
  ModelFlags rounded = both;
  rounded.dtype = "bf16";
  EXPECT_EQ(from_models(rounded)->models[1].dtype, DType::kBFloat16);
  rounded.small_dtype = "q4_0";
  EXPECT_EQ(from_models(rounded)->models[0].dtype, DType::kBFloat16);
  EXPECT_EQ(from_models(rounded)->models[1].dtype, DType::kQ40);
  ModelFlags not_rounded = both, none_rounded{{"a=" + folder_}};
  not_rounded.small_dtype = "q4";
  none_rounded.small_dtype = "q4_0";
  ModelFlags no_masks = both, no_small{{"a=" + folder_}};
  no_masks.small_masks = "/nonexistent";
  no_small.small_masks = folder_;
  ModelFlags three = both;
  three.models.push_back("c=" + folder_);
  three.small = "x";
  ModelFlags missing = both;
  missing.small = "/nonexistent";

  const struct {
    ModelFlags flags;
    std::string message;
  } cases[] = {
      {three, "--small: \"x\"; allowed: unset with several --model"},
      {no_masks, "--small-masks: \"/nonexistent\"; allowed: a directory that exists"},
      {no_small, "--small-masks: \"" + folder_ + "\"; allowed: unset without --small"},
      {not_rounded,
       "--small-dtype: \"q4\"; allowed: auto, fp32 or float32, bf16 or bfloat16, fp16 or float16, "
       "fp64 or float64, int8, int4, q4_0, fp8, stored"},
      {none_rounded, "--small-dtype: \"q4_0\"; allowed: unset without --small"},
      {missing,
       "--model small: \"/nonexistent\"; allowed: a directory that exists, or a "
       ".gguf file"},
      {{}, "--model: none; allowed: at least one [NAME=]PATH"},
      {{{"a"}}, "--model a: \"a\"; allowed: a directory that exists, or a .gguf file"},
      {{{"=x"}}, "--model name: \"\"; allowed: 1 to 64 of letters, digits and . _ - /"},
      {{{"a=/nonexistent"}},
       "--model a: \"/nonexistent\"; allowed: a directory that exists, or a .gguf "
       "file"},
      {{{"a=~/model"}},
       "--model a: \"~/model\"; allowed: a path with the home directory written out: ~ means "
       "nothing outside a shell"},
      {{{"a=none/model.gguf"}},
       "--model a: \"none/model.gguf\"; allowed: a .gguf file that exists"},
      {{{"a=who/model-8b"}},
       "--model a: \"who/model-8b\"; allowed: a directory that exists, or a .gguf file; a file "
       "names a model of the Hugging Face hub as hf://who/model-8b"},
      {{{"a=" + folder_, "a=" + folder_}},
       "--model name: \"a\"; allowed: a name that is not taken already"},
      {{{"a=" + folder_}, "tpu:0"},
       "--device: \"tpu:0\"; allowed: \"cpu:N\" or \"cuda:N\" with N in [0, 255], or one of these "
       "and \"/L\" with L in [1, 15]"},
      {{{"a=" + folder_}, "cpu:0", "fp4"},
       "--dtype: \"fp4\"; allowed: auto, fp32 or float32, bf16 or bfloat16, fp16 or float16, fp64 "
       "or "
       "float64, int8, int4, q4_0, fp8, stored"},
      {{{"a=" + folder_}, "cpu:0", "int8", "mkl"}, "--cpu-kernels: \"mkl\"; allowed: own, aten"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(std::string(from_models(c.flags).status().message()), c.message);
  }
}

}  // namespace
}  // namespace tandem
