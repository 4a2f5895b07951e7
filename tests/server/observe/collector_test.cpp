#include "server/observe/collector.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "engine/decode/bild.h"
#include "engine/decode/ppd.h"

namespace tandem {
namespace {

// Hands over what it was given.
class Given final : public prometheus::Collectable {
 public:
  explicit Given(std::vector<prometheus::MetricFamily> families) : families_(std::move(families)) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return families_; }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

void fill(Metrics& metrics) {
  Series& s = metrics.series.emplace_back();
  s.model = "code";
  s.method = "autoregressive";
  s.requests_running.set(2);
  s.requests_waiting.set(1);
  s.prompt_tokens.add(100);
  s.generated_tokens.add(50);
  s.finished[static_cast<size_t>(FinishReason::kEos)].add(3);
  s.failed[static_cast<size_t>(absl::StatusCode::kDeadlineExceeded)].add(1);
  s.failed[static_cast<size_t>(absl::StatusCode::kAborted)].add(1);  // shown because not zero
  s.time_to_first_token.observe(.001);                               // on a bound: belongs to it
  s.time_to_first_token.observe(.0011);
  s.inter_token_latency.observe(3);  // above all bounds
  s.tokens_per_pass.observe(1);
  s.prompt_length.observe(50);
  s.answer_length.observe(51);
  ModelSeries& m = metrics.models.emplace_back();
  m.model = "code-large";
  m.device = "cpu:0";
  m.passes[static_cast<size_t>(Role::kLarge)].add(40);
  m.passes[static_cast<size_t>(Role::kSmall)].add(7);  // early exit
  m.batches.add(10);
  m.batch_rows.observe(4);
  m.kv_pages_total.set(100);
  m.kv_pages_used.set(25);
  m.kv_pages_cached.set(30);
  m.weight_bytes.set(1e6);
  m.kv_bytes.set(2e6);
  metrics.requests_paused.set(3);
  metrics.rejected[static_cast<size_t>(RejectReason::kInvalid)].add(2);
  metrics.preemptions.add(1);
  metrics.prefix_cache_queries.add(20);
  metrics.prefix_cache_hits.add(10);
  metrics.device_copy_bytes.add(4096);
}

// A request of a method that verifies drafts.
void add_drafts(Metrics& metrics) {
  Series& bild = metrics.series.emplace_back();
  bild.model = "code";
  bild.method = "bild";
  MethodStats stats;
  stats.count_verification(4, 3);
  stats.count_verification(3, 3);
  stats.count_verification(2, 0);
  stats.own[BildFigures::kFallbacks] = 5;
  stats.own[BildFigures::kRollbacks] = 2;
  stats.own[BildFigures::kRolledBackTokens] = 3;
  bild.add_method_stats(stats);
}

// A request of PPD: of its nine tokens two were a round's first candidate, one the third.
void add_pipeline(Metrics& metrics) {
  Series& ppd = metrics.series.emplace_back();
  ppd.model = "code";
  ppd.method = "ppd";
  MethodStats stats;
  stats.own[PpdFigures::kRounds] = 8;
  stats.own[PpdFigures::kMatches] = 3;
  stats.own[PpdFigures::kFirstMatches] = 2;
  stats.own[PpdFigures::kAdopted] = 2;
  stats.own[PpdFigures::kMainLayers] = 64;
  stats.own[PpdFigures::kWorkerLayers] = 96;
  stats.own[PpdFigures::kCopiedRows] = 10;
  stats.own[PpdFigures::kPredictedMainLayers] = 60;
  stats.own[PpdFigures::kCopiedBytes] = 5120;
  stats.own[PpdFigures::kLowerTime] = 1'500'000'000;
  stats.own[PpdFigures::kUpperTime] = 250'000'000;
  stats.own[PpdFigures::kBarrierTime] = 500'000;
  stats.own[PpdFigures::kWorkerTime] = 125'000'000;
  stats.tokens_by_index = {2, 0, 1};
  ppd.add_method_stats(stats);
}

std::string text() {
  Metrics metrics;
  fill(metrics);
  RefusedCalls refused;
  refused.by_status[static_cast<size_t>(absl::StatusCode::kInvalidArgument)].add(5);
  return exposition(Given(engine_families(metrics, refused, {{"code-large", "large"}})));
}

TEST(Collector, MatchesTheGoldenExposition) {
  const std::string path =
      std::string(TANDEM_SOURCE_DIR) + "/tests/server/observe/data/metrics.txt";
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  if (golden.str() != text()) {
    const std::string actual = testing::TempDir() + "metrics.txt";
    std::ofstream(actual) << text();
    FAIL() << path << " differs from " << actual;
  }
}

TEST(Collector, HasTheNamesOfTheDocumentation) {
  std::set<std::string> names;
  Metrics metrics;
  fill(metrics);
  add_drafts(metrics);
  for (const auto& family : engine_families(metrics, {}, {})) names.insert(family.name);
  names.insert(build_info_family().name);
  for (const char* name : {"requests_running",
                           "requests_waiting",
                           "kv_cache_usage_ratio",
                           "kv_cache_pages",
                           "device_memory_bytes",
                           "prompt_tokens_total",
                           "generated_tokens_total",
                           "requests_total",
                           "requests_failed_total",
                           "requests_rejected_total",
                           "preemptions_total",
                           "prefix_cache_queries_total",
                           "prefix_cache_hits_total",
                           "prefix_store_pages_total",
                           "prefix_store_bytes_total",
                           "passes_total",
                           "device_copy_bytes_total",
                           "build_info",
                           "time_to_first_token_seconds",
                           "inter_token_latency_seconds",
                           "request_queue_seconds",
                           "request_prefill_seconds",
                           "request_decode_seconds",
                           "e2e_request_latency_seconds",
                           "batch_rows",
                           "request_prompt_tokens",
                           "request_generated_tokens",
                           "tokens_per_pass",
                           "spec_decode_num_drafts_total",
                           "spec_decode_num_draft_tokens_total",
                           "spec_decode_num_accepted_tokens_total",
                           "spec_decode_num_accepted_tokens_per_pos_total",
                           "accept_length",
                           "bild_fallbacks_total",
                           "bild_forced_calls_total",
                           "bild_rollbacks_total",
                           "bild_rolled_back_tokens_total"}) {
    EXPECT_EQ(names.count(std::string("tandem_") + name), 1u) << name;
  }
}

TEST(Collector, DraftsAreCountedAsTheirStatisticsSay) {
  Metrics metrics;
  fill(metrics);
  add_drafts(metrics);
  std::string of_drafts;  // what the main golden has not
  std::istringstream all(exposition(Given(engine_families(metrics, {}, {}))));
  for (std::string line; std::getline(all, line);) {
    for (const char* name : {"tandem_spec_decode", "tandem_accept_length", "tandem_bild"}) {
      if (line.rfind(name, 0) == 0) of_drafts += line + "\n";
    }
  }
  const std::string s = "{model=\"code\",method=\"bild\"";
  std::string expected = "tandem_spec_decode_num_drafts_total" + s + "} 3\n" +
                         "tandem_spec_decode_num_draft_tokens_total" + s + "} 9\n" +
                         "tandem_spec_decode_num_accepted_tokens_total" + s + "} 6\n";
  for (const char* position : {"0", "1", "2"}) {
    expected += "tandem_spec_decode_num_accepted_tokens_per_pos_total" + s + ",position=\"" +
                position + "\"} 2\n";
  }
  expected += "tandem_accept_length_count" + s + "} 3\ntandem_accept_length_sum" + s + "} 6\n";
  for (const char* le : {"0", "1", "2", "3", "4", "5", "6", "8", "10", "16", "32", "64", "+Inf"}) {
    expected += "tandem_accept_length_bucket" + s + ",le=\"" + le + "\"} " +
                (*le == '0' || (*le == '1' && le[1] == 0) || *le == '2' ? "1" : "3") + "\n";
  }
  expected += "tandem_bild_fallbacks_total" + s + "} 5\n" + "tandem_bild_forced_calls_total" + s +
              "} 0\n" + "tandem_bild_rollbacks_total" + s + "} 2\n" +
              "tandem_bild_rolled_back_tokens_total" + s + "} 3\n";
  EXPECT_EQ(of_drafts, expected);
}

TEST(Collector, MatchesAreCountedByRank) {
  Metrics metrics;
  add_pipeline(metrics);
  std::string of_ppd;
  std::istringstream all(exposition(Given(engine_families(metrics, {}, {}))));
  for (std::string line; std::getline(all, line);) {
    for (const char* name : {"tandem_ppd", "tandem_proposed"}) {
      if (line.rfind(name, 0) == 0) of_ppd += line + "\n";
    }
  }
  const std::string s = "{model=\"code\",method=\"ppd\"";
  const auto line = [&](const std::string& name, const std::string& value) {
    return "tandem_ppd_" + name + "_total" + s + "} " + value + "\n";
  };
  EXPECT_EQ(of_ppd, "tandem_proposed_tokens_total" + s + ",index=\"0\"} 2\n" +
                        "tandem_proposed_tokens_total" + s + ",index=\"2\"} 1\n" +
                        line("rounds", "8") + line("matches", "3") + line("first_matches", "2") +
                        line("adopted_rows", "2") + line("main_layers", "64") +
                        line("worker_layers", "96") + line("copied_rows", "10") +
                        line("predicted_main_layers", "60") + line("copied_bytes", "5120") +
                        line("lower_seconds", "1.5") + line("upper_seconds", "0.25") +
                        line("barrier_seconds", "0.0005") + line("worker_seconds", "0.125"));
}

TEST(Collector, ClientsThatAreNamedAndAllOthers) {
  LimitsConfig limits;
  limits.clients["ann"].max_requests = 1;
  const VirtualClock clock;
  Quotas quotas(limits, &clock);
  RejectReason reason{};
  auto of_ann = quotas.open("ann", &reason), of_bob = quotas.open("bob", &reason);
  ASSERT_TRUE(of_ann.ok() && of_bob.ok());
  of_ann->charge(5);
  EXPECT_FALSE(quotas.open("ann", &reason).ok());
  of_bob->close();
  const std::string all = exposition(Given(client_families(quotas.uses())));
  for (const char* line : {"open_requests{client=\"ann\"} 1", "open_requests{client=\"\"} 0",
                           "requests_total{client=\"ann\"} 1", "requests_total{client=\"\"} 1",
                           "tokens_total{client=\"ann\"} 5", "tokens_total{client=\"\"} 0",
                           "refused_total{client=\"ann\",reason=\"quota_open_requests\"} 1",
                           "refused_total{client=\"\",reason=\"quota_open_requests\"} 0"}) {
    EXPECT_THAT(all, testing::HasSubstr(std::string("tandem_client_") + line + "\n"));
  }
}

// Each name has one series: pickers read the first.
TEST(Collector, GatewaysReadOneSeriesOfAll) {
  Metrics metrics;
  fill(metrics);
  metrics.series.emplace_back().requests_running.set(5);
  metrics.requests_waiting.set(4);
  metrics.requests_tokenizing.set(3);
  metrics.models[0].page_rows = 16;
  ModelSeries& replica = metrics.models.emplace_back();
  replica.model = "code-large";
  replica.kv_pages_total.set(100);
  replica.kv_pages_used.set(75);
  ModelSeries& small = metrics.models.emplace_back();
  small.model = "code-small";
  small.kv_pages_total.set(1000);
  const std::string all = exposition(Given(
      gateway_families(metrics, {{"code-small", "small"}, {"code-large", "large"}}, "code", 7)));
  std::string values;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    if (line[0] != '#') values += line + "\n";
  }
  EXPECT_EQ(values,
            "tandem_num_requests_waiting 7\n"
            "vllm:num_requests_waiting{model_name=\"code\"} 7\n"
            "tandem_num_requests_running 7\n"
            "vllm:num_requests_running{model_name=\"code\"} 7\n"
            "tandem_kv_cache_usage 0.5\n"
            "vllm:kv_cache_usage_perc{model_name=\"code\"} 0.5\n"
            "tandem_cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\"} 1\n"
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\",model_name=\"code\"} "
            "1\n");
}

TEST(Collector, GatewaysReadTheAdaptersInUse) {
  Metrics metrics;
  std::vector<std::shared_ptr<AdapterSeries>> opened;
  const auto add = [&](const char* model, const char* adapter, int running, int waiting) {
    AdapterSeries& s = *opened.emplace_back(metrics.adapters.open(model, adapter));
    s.requests_running.set(running);
    s.requests_waiting.set(waiting);
    s.requests.add(running);
  };
  add("code", "sql", 2, 1);
  add("code", "law", 1, 0);
  add("pair", "law", 0, 3);
  add("pair", "idle", 0, 0);
  EXPECT_THAT(exposition(Given(gateway_families(metrics, {}, "code", 1700000000))),
              testing::HasSubstr("vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters="
                                 "\"sql,code:law\",waiting_lora_adapters=\"sql,pair:law\"} "
                                 "1700000000\n"));
  EXPECT_THAT(exposition(Given(gateway_families(Metrics(), {}, "code", 7))),
              testing::Not(testing::HasSubstr("lora")));
  const std::string all = exposition(Given(engine_families(metrics, {}, {})));
  for (const char* line : {"requests_total{model=\"code\",adapter=\"sql\"} 2",
                           "requests_running{model=\"code\",adapter=\"law\"} 1",
                           "requests_waiting{model=\"pair\",adapter=\"law\"} 3",
                           "requests_total{model=\"pair\",adapter=\"idle\"} 0"}) {
    EXPECT_THAT(all, testing::HasSubstr(std::string("tandem_adapter_") + line + "\n"));
  }
}

TEST(Collector, GatewaysGetNoFiguresBeforeTheEngine) {
  EXPECT_EQ(gateway_page(ServerState{ServerConfig()}).status, 503);
}

TEST(Collector, LostDevices) {
  const std::string all = exposition(Given({device_family({{"cpu:0", false}, {"cuda:1", true}})}));
  EXPECT_THAT(all, testing::HasSubstr("tandem_device_lost{device=\"cpu:0\"} 0\n"
                                      "tandem_device_lost{device=\"cuda:1\"} 1\n"));
}

TEST(Collector, LoadedAndUnloadedDeployments) {
  DeploymentState loaded{.loads = 1}, unloaded{.loads = 3, .idle_unloads = 2, .failed_loads = 4};
  DeploymentState draining{.draining = true};
  loaded.info.name = "a";
  unloaded.info.name = "b";
  draining.info.name = "a";
  unloaded.info.unloaded = true;
  const std::string all = exposition(Given(deployment_families({loaded, unloaded, draining})));
  EXPECT_THAT(all, testing::HasSubstr("tandem_deployment_loaded{model=\"a\"} 1\n"
                                      "tandem_deployment_loaded{model=\"b\"} 0\n#"));
  for (const char* line :
       {"loads_total{model=\"b\"} 3", "loads_total{model=\"a\"} 1",
        "idle_unloads_total{model=\"b\"} 2", "failed_loads_total{model=\"b\"} 4"}) {
    EXPECT_THAT(all, testing::HasSubstr(std::string("tandem_deployment_") + line + "\n"));
  }
}

TEST(Collector, BuildInfoNamesWhatWasBuilt) {
  const auto family = build_info_family();
  ASSERT_EQ(family.metric.size(), 1u);
  std::set<std::string> labels;
  for (const auto& label : family.metric[0].label) labels.insert(label.name);
  EXPECT_EQ(labels, (std::set<std::string>{"version", "commit", "torch", "cuda"}));
}

TEST(Collector, BeforeTheEngineOnlyBuildInfo) {
  const ServerState state{ServerConfig()};
  EXPECT_EQ(Collector(state).Collect().size(), 1u);
}

}  // namespace
}  // namespace tandem
