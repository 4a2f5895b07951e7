#include "server/observe/collector.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/version.h"
#include "engine/host/methods/registry.h"
#include "engine/host/requests/request.h"
#include "server/edge/status_text.h"

namespace tandem {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// A metric family under construction.
class Family {
 public:
  Family(const std::string& name, const std::string& help, MetricType type) {
    family_.name = "tandem_" + name;
    family_.help = help;
    family_.type = type;
  }
  // Without the prefix.
  static Family named(const std::string& name, const std::string& help) {
    Family family(name, help, MetricType::Gauge);
    family.family_.name = name;
    return family;
  }

  void counter(Labels labels, int64_t value) {
    counter(std::move(labels), static_cast<double>(value));
  }
  void counter(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    family_.metric.push_back(std::move(metric));
  }

  void gauge(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    family_.metric.push_back(std::move(metric));
  }

  void histogram(Labels labels, const Histogram& from) {
    ClientMetric metric;
    metric.label = std::move(labels);
    uint64_t total = 0;
    const std::vector<double>& bounds = from.bounds();
    for (size_t i = 0; i <= bounds.size(); ++i) {
      total += static_cast<uint64_t>(from.count(i));
      const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({total, bound});
    }
    metric.histogram.sample_count = total;
    metric.histogram.sample_sum = from.sum();
    family_.metric.push_back(std::move(metric));
  }

  MetricFamily take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

Labels of(const Series& series) { return {{"model", series.model}, {"method", series.method}}; }
Labels of(const ModelSeries& model) { return {{"model", model.model}, {"device", model.device}}; }

Labels with(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

// Families with a metric per (deployment, method), for the series that `has` accepts.
class PerSeries {
 public:
  using Has = bool (*)(const Series&);
  PerSeries(
      const Metrics& metrics, std::vector<MetricFamily>* out,
      Has has = [](const Series&) { return true; })
      : metrics_(metrics), out_(out), has_(has) {}

  bool has(const Series& s) const { return has_(s); }
  void counter(const char* name, const char* help, Counter Series::* member) const {
    Family family(name, help, MetricType::Counter);
    for (const Series& s : metrics_.series) {
      if (has_(s)) family.counter(of(s), (s.*member).value());
    }
    add(&family);
  }
  void gauge(const char* name, const char* help, Gauge Series::* member) const {
    Family family(name, help, MetricType::Gauge);
    for (const Series& s : metrics_.series) {
      if (has_(s)) family.gauge(of(s), (s.*member).value());
    }
    add(&family);
  }
  void histogram(const char* name, const char* help, Histogram Series::* member) const {
    Family family(name, help, MetricType::Histogram);
    for (const Series& s : metrics_.series) {
      if (has_(s)) family.histogram(of(s), s.*member);
    }
    add(&family);
  }
  // Omits a family without metrics.
  void add(Family* family) const {
    MetricFamily made = family->take();
    if (!made.metric.empty()) out_->push_back(std::move(made));
  }

 private:
  const Metrics& metrics_;
  std::vector<MetricFamily>* const out_;
  const Has has_;
};

bool expected(absl::StatusCode code) {
  using enum absl::StatusCode;
  return !absl::c_linear_search(
      std::array{kUnknown, kAlreadyExists, kAborted, kOutOfRange, kUnimplemented, kDataLoss}, code);
}

void add_request_families(const Metrics& metrics, const RefusedCalls& refused,
                          std::vector<MetricFamily>* out) {
  const PerSeries per(metrics, out);
  per.gauge("requests_running", "Requests admitted and not yet ended.", &Series::requests_running);
  per.gauge("requests_waiting", "Requests queued before admission.", &Series::requests_waiting);
  const auto of_all = [out](const char* name, const char* help, const Gauge& gauge) {
    Family family(name, help, MetricType::Gauge);
    family.gauge({}, gauge.value());
    out->push_back(family.take());
  };
  of_all("requests_tokenizing",
         "Requests whose prompts wait for tokenization or are being tokenized.",
         metrics.requests_tokenizing);
  of_all("waiting_bytes", "Memory of requests before admission (limit: limits.max_waiting_bytes).",
         metrics.waiting_bytes);
  of_all("requests_paused", "Requests paused until their clients read.", metrics.requests_paused);
  per.counter("prompt_tokens_total", "Prompt tokens of admitted requests.", &Series::prompt_tokens);
  per.counter("generated_tokens_total", "Tokens generated.", &Series::generated_tokens);
  {
    Family family("requests_total", "Requests that succeeded, by finish reason.",
                  MetricType::Counter);
    for (const Series& s : metrics.series) {
      for (int i = 0; i < kFinishReasons; ++i) {
        family.counter(with(of(s), "finish_reason",
                            std::string(finish_reason_name(static_cast<FinishReason>(i)))),
                       s.finished[static_cast<size_t>(i)].value());
      }
    }
    out->push_back(family.take());
  }
  {
    // Calls that ended before a model and method were chosen have empty labels.
    Family family("requests_failed_total", "Requests that ended with an error, by gRPC status.",
                  MetricType::Counter);
    const auto add = [&](const Labels& labels, const auto& by_status) {
      for (int code = 1; code < kStatusCodes; ++code) {
        const auto status = static_cast<absl::StatusCode>(code);
        const int64_t value = by_status[static_cast<size_t>(code)].value();
        // Unexpected codes are omitted at zero.
        if (value > 0 || expected(status)) {
          family.counter(with(labels, "status", code_name(status)), value);
        }
      }
    };
    std::array<Counter, kStatusCodes> early;  // rejected by the server or the engine
    for (size_t code = 0; code < early.size(); ++code) {
      early[code].add(refused.by_status[code].value() + metrics.refused[code].value());
    }
    add({{"model", ""}, {"method", ""}}, early);
    for (const Series& s : metrics.series) add(of(s), s.failed);
    out->push_back(family.take());
  }
  {
    Family family("requests_rejected_total", "Requests refused before admission, by reason.",
                  MetricType::Counter);
    for (int i = 0; i < kRejectReasons; ++i) {
      const auto reason = static_cast<RejectReason>(i);
      int64_t value = metrics.rejected[static_cast<size_t>(i)].value();
      if (reason == RejectReason::kInvalid) {
        value += refused.by_status[static_cast<size_t>(absl::StatusCode::kInvalidArgument)].value();
      }
      family.counter({{"reason", reject_reason_name(reason)}}, value);
    }
    out->push_back(family.take());
  }
  per.histogram("time_to_first_token_seconds", "From arrival to the first token.",
                &Series::time_to_first_token);
  per.histogram("inter_token_latency_seconds", "Between tokens of a request.",
                &Series::inter_token_latency);
  per.histogram("request_queue_seconds", "From arrival to admission.", &Series::queue_time);
  per.histogram("request_prefill_seconds", "From admission to the first token.",
                &Series::prefill_time);
  per.histogram("request_decode_seconds", "From the first token to the end.", &Series::decode_time);
  per.histogram("e2e_request_latency_seconds", "From arrival to the end.", &Series::e2e_latency);
  per.histogram("request_prompt_tokens", "Prompt tokens of a request.", &Series::prompt_length);
  per.histogram("request_generated_tokens", "Tokens generated for a request's first choice.",
                &Series::answer_length);
  per.histogram("tokens_per_pass", "Tokens per pass of the large model.", &Series::tokens_per_pass);
}

// Families of methods that verify drafts.
void add_draft_families(const Metrics& metrics, std::vector<MetricFamily>* out) {
  const PerSeries per(metrics, out, [](const Series& s) {
    const MethodEntry* const method = find_method(s.method);
    return method && method->drafts;
  });
  per.counter("spec_decode_num_drafts_total", "Drafts that the large model verified.",
              &Series::drafts);
  per.counter("spec_decode_num_draft_tokens_total", "Tokens of these drafts.",
              &Series::draft_tokens);
  per.counter("spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.",
              &Series::accepted_tokens);
  {
    Family family("spec_decode_num_accepted_tokens_per_pos_total",
                  "Drafts whose token at this position was accepted.", MetricType::Counter);
    for (const Series& s : metrics.series) {
      if (!per.has(s)) continue;
      for (size_t i = 0; i < kDraftPositions; ++i) {
        const int64_t value = s.accepted_at[i].value();
        if (i > 0 && value == 0) break;  // later positions are 0 too
        family.counter(with(of(s), "position", std::to_string(i)), value);
      }
    }
    per.add(&family);
  }
  per.histogram("accept_length", "Accepted tokens of a draft.", &Series::accept_length);
}

// The family of methods whose masks or candidates propose tokens.
void add_proposer_family(const Metrics& metrics, std::vector<MetricFamily>* out) {
  const PerSeries per(metrics, out);
  Family family("proposed_tokens_total", "Final tokens that this mask or candidate proposed.",
                MetricType::Counter);
  for (const Series& s : metrics.series) {
    for (size_t i = 0; i < kProposers; ++i) {
      const int64_t value = s.proposed_by[i].value();
      if (value > 0) family.counter(with(of(s), "index", std::to_string(i)), value);
    }
  }
  per.add(&family);
}

// The counters of each method's entry: tandem_METHOD_NAME_total.
void add_own_families(const Metrics& metrics, std::vector<MetricFamily>* out) {
  const PerSeries per(metrics, out);
  for (const MethodEntry* method : all_methods()) {
    for (size_t i = 0; i < method->counters.size(); ++i) {
      const MethodCounter& counter = method->counters[i];
      Family family(method->name + "_" + counter.name + "_total", counter.help,
                    MetricType::Counter);
      for (const Series& s : metrics.series) {
        if (s.method == method->name) family.counter(of(s), counter.reported(s.own[i].value()));
      }
      per.add(&family);
    }
  }
}

void add_model_families(const Metrics& metrics,
                        const std::vector<std::pair<std::string, std::string>>& roles,
                        std::vector<MetricFamily>* out) {
  const auto serves_as = [&](const std::string& model, const std::string& role) {
    return std::find(roles.begin(), roles.end(), std::pair(model, role)) != roles.end();
  };
  Family usage("kv_cache_usage_ratio", "KV pages in use, of all pages.", MetricType::Gauge);
  Family pages("kv_cache_pages", "KV pages, by state.", MetricType::Gauge);
  Family memory("device_memory_bytes", "Memory held on a device, by purpose.", MetricType::Gauge);
  Family passes("passes_total", "Forward passes, by role of the model.", MetricType::Counter);
  Family batches("batches_total", "Batches.", MetricType::Counter);
  Family rows("batch_rows", "Rows per batch.", MetricType::Histogram);
  for (const ModelSeries& m : metrics.models) {
    const double total = m.kv_pages_total.value();
    const double used = m.kv_pages_used.value(), cached = m.kv_pages_cached.value();
    usage.gauge(of(m), total > 0 ? used / total : 0);
    pages.gauge(with(of(m), "state", "used"), used);
    pages.gauge(with(of(m), "state", "cached"), cached);
    pages.gauge(with(of(m), "state", "free"), total - used - cached);
    memory.gauge(with(of(m), "kind", "weights"), m.weight_bytes.value());
    memory.gauge(with(of(m), "kind", "kv_cache"), m.kv_bytes.value());
    for (size_t r = 0; r < kRoles; ++r) {
      const std::string role = role_name(static_cast<Role>(r));
      const int64_t value = m.passes[r].value();
      if (value > 0 || serves_as(m.model, role)) {
        passes.counter({{"model", m.model}, {"role", role}}, value);
      }
    }
    batches.counter(of(m), m.batches.value());
    rows.histogram(of(m), m.batch_rows);
  }
  for (Family* family : {&usage, &pages, &memory, &passes, &batches, &rows}) {
    out->push_back(family->take());
  }
}

void add_totals(const Metrics& metrics, std::vector<MetricFamily>* out) {
  const auto add = [&](const char* name, const char* help, const Counter& counter) {
    Family family(name, help, MetricType::Counter);
    family.counter({}, counter.value());
    out->push_back(family.take());
  };
  add("preemptions_total", "Requests preempted to free KV pages.", metrics.preemptions);
  add("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
      metrics.prefix_cache_queries);
  add("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
      metrics.prefix_cache_hits);
  add("device_copy_bytes_total", "Bytes of rows copied between devices or device queues.",
      metrics.device_copy_bytes);
  Family pages(
      "prefix_store_pages_total",
      "KV pages written to the prefix store, restored from it, and refused: damaged, or of "
      "another build or model.",
      MetricType::Counter);
  Family bytes("prefix_store_bytes_total", "The same in bytes of files.", MetricType::Counter);
  for (const auto& [event, stored] : {std::pair("saved", &metrics.prefixes_saved),
                                      std::pair("restored", &metrics.prefixes_restored),
                                      std::pair("refused", &metrics.prefixes_refused)}) {
    pages.counter({{"event", event}}, stored->pages.value());
    bytes.counter({{"event", event}}, stored->bytes.value());
  }
  out->push_back(pages.take());
  out->push_back(bytes.take());
}

// (loaded model, role) of every deployment.
std::vector<std::pair<std::string, std::string>> roles_of(
    const std::vector<DeploymentInfo>& deployments) {
  std::vector<std::pair<std::string, std::string>> roles;
  for (const DeploymentInfo& deployment : deployments) {
    for (const ModelInDeployment& model : deployment.models) {
      roles.emplace_back(model.name, model.role);
    }
  }
  return roles;
}

using Adapters = std::vector<std::shared_ptr<AdapterSeries>>;

// The names of adapters with requests, as clients know them: those that several deployments have
// with the deployment.
std::string adapters_with(const Adapters& adapters, Gauge AdapterSeries::* requests) {
  std::vector<std::string> names;
  for (const auto& s : adapters) {
    if (((*s).*requests).value() <= 0) continue;
    const bool alone =
        absl::c_count_if(adapters, [&s](const auto& o) { return o->adapter == s->adapter; }) == 1;
    names.push_back(alone ? s->adapter : absl::StrCat(s->model, ":", s->adapter));
  }
  return absl::StrJoin(names, ",");
}

// All loaded adapters can run at the same time.
MetricFamily lora_family(const Adapters& adapters, int64_t unix_time) {
  Family family = Family::named(
      "vllm:lora_requests_info",
      "LoRA adapters of running and waiting requests. The value is the time of the scrape.");
  family.gauge(
      {{"max_lora", std::to_string(adapters.size())},
       {"running_lora_adapters", adapters_with(adapters, &AdapterSeries::requests_running)},
       {"waiting_lora_adapters", adapters_with(adapters, &AdapterSeries::requests_waiting)}},
      static_cast<double>(unix_time));
  return family.take();
}

// Families with a metric per (deployment, LoRA adapter). Omitted without adapters.
void add_adapter_families(const Metrics& metrics, std::vector<MetricFamily>* out) {
  const Adapters adapters = metrics.adapters.all();
  if (adapters.empty()) return;
  Family total("adapter_requests_total", "Admitted requests with a LoRA adapter.",
               MetricType::Counter);
  Family running("adapter_requests_running",
                 "Requests with a LoRA adapter, admitted and not yet ended.", MetricType::Gauge);
  Family waiting("adapter_requests_waiting",
                 "Requests with a LoRA adapter, queued before admission.", MetricType::Gauge);
  for (const auto& s : adapters) {
    const Labels labels = {{"model", s->model}, {"adapter", s->adapter}};
    total.counter(labels, s->requests.value());
    running.gauge(labels, s->requests_running.value());
    waiting.gauge(labels, s->requests_waiting.value());
  }
  for (Family* family : {&total, &running, &waiting}) out->push_back(family->take());
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<MetricFamily> gateway_families_of(const Engine& engine) {
  const std::vector<DeploymentInfo> deployments = engine.deployments();
  return gateway_families(engine.metrics(), roles_of(deployments),
                          deployments.empty() ? "" : deployments.front().name, unix_time());
}

}  // namespace

std::vector<MetricFamily> gateway_families(
    const Metrics& metrics, const std::vector<std::pair<std::string, std::string>>& roles,
    const std::string& deployment, int64_t unix_time) {
  double running = 0, used = 0, pages = 0;
  int page_rows = 0;
  for (const Series& s : metrics.series) running += s.requests_running.value();
  const std::string large = role_name(Role::kLarge);
  for (const ModelSeries& m : metrics.models) {
    if (!absl::c_linear_search(roles, std::pair(m.model, large))) continue;
    used += m.kv_pages_used.value();
    pages += m.kv_pages_total.value();
    if (page_rows == 0) page_rows = m.page_rows;
  }
  const double waiting = metrics.requests_waiting.value() + metrics.requests_tokenizing.value();
  std::vector<MetricFamily> out;
  const auto add = [&](const char* name, const char* of_vllm, const char* help, double value,
                       const Labels& labels = {}) {
    Family own(name, help, MetricType::Gauge);
    own.gauge(labels, value);
    out.push_back(own.take());
    Family alias = Family::named(absl::StrCat("vllm:", of_vllm), help);
    alias.gauge(with(labels, "model_name", deployment), value);
    out.push_back(alias.take());
  };
  add("num_requests_waiting", "num_requests_waiting",
      "Requests before admission, with those being tokenized.", waiting);
  add("num_requests_running", "num_requests_running", "Requests admitted and not yet ended.",
      running);
  add("kv_cache_usage", "kv_cache_usage_perc",
      "KV pages of the large models in use, from 0 to 1, without pages that only the prefix cache "
      "holds.",
      pages > 0 ? used / pages : 0);
  add("cache_config_info", "cache_config_info",
      "Rows of a KV page, and pages of the large models; always 1.", 1,
      {{"block_size", std::to_string(page_rows)},
       {"num_gpu_blocks", std::to_string(static_cast<int64_t>(pages))}});
  if (const Adapters adapters = metrics.adapters.all(); !adapters.empty()) {
    out.push_back(lora_family(adapters, unix_time));
  }
  return out;
}

std::vector<MetricFamily> engine_families(
    const Metrics& metrics, const RefusedCalls& refused,
    const std::vector<std::pair<std::string, std::string>>& roles) {
  std::vector<MetricFamily> out;
  add_request_families(metrics, refused, &out);
  add_draft_families(metrics, &out);
  add_proposer_family(metrics, &out);
  add_own_families(metrics, &out);
  add_adapter_families(metrics, &out);
  add_model_families(metrics, roles, &out);
  add_totals(metrics, &out);
  return out;
}

std::vector<MetricFamily> client_families(const std::map<std::string, ClientUse>& clients) {
  Family open("client_open_requests", "Open requests of a client.", MetricType::Gauge);
  Family requests("client_requests_total", "Admitted requests of a client.", MetricType::Counter);
  Family tokens("client_tokens_total", "Prompt and output tokens of a client.",
                MetricType::Counter);
  Family refused("client_refused_total", "Requests rejected by a quota of a client.",
                 MetricType::Counter);
  for (const auto& [name, use] : clients) {
    const Labels client = {{"client", name}};
    open.gauge(client, use.open.value());
    requests.counter(client, use.requests.value());
    tokens.counter(client, use.tokens.value());
    for (const RejectReason quota :
         {RejectReason::kQuotaOpen, RejectReason::kQuotaRequests, RejectReason::kQuotaTokens}) {
      refused.counter(with(client, "reason", reject_reason_name(quota)),
                      use.refused[static_cast<size_t>(quota)].value());
    }
  }
  return {open.take(), requests.take(), tokens.take(), refused.take()};
}

std::vector<MetricFamily> deployment_families(const std::vector<DeploymentState>& deployments) {
  Family loaded("deployment_loaded", "1 if the models are in memory; 0: unloaded, as it was idle.",
                MetricType::Gauge);
  Family loads("deployment_loads_total", "Loads since the name was loaded first.",
               MetricType::Counter);
  Family unloads("deployment_idle_unloads_total", "Unloads of an idle deployment.",
                 MetricType::Counter);
  Family failed("deployment_failed_loads_total",
                "Loads of an unloaded deployment that failed, and ended the waiting requests.",
                MetricType::Counter);
  for (const DeploymentState& d : deployments) {
    if (d.draining) continue;
    const Labels labels = {{"model", d.info.name}};
    loaded.gauge(labels, d.info.unloaded ? 0 : 1);
    loads.counter(labels, d.loads);
    unloads.counter(labels, d.idle_unloads);
    failed.counter(labels, d.failed_loads);
  }
  return {loaded.take(), loads.take(), unloads.take(), failed.take()};
}

MetricFamily device_family(const std::vector<DeviceInfo>& devices) {
  Family family("device_lost", "1 if the device has failed permanently.", MetricType::Gauge);
  for (const DeviceInfo& device : devices) family.gauge({{"device", device.name}}, device.lost);
  return family.take();
}

MetricFamily build_info_family() {
  Family family("build_info", "Version of the build; always 1.", MetricType::Gauge);
  family.gauge({{"version", kVersion},
                {"commit", kCommit},
                {"torch", kTorchVersion},
                {"cuda", kCudaVersion}},
               1);
  return family.take();
}

std::vector<MetricFamily> edge_families(const EdgeStats& now) {
  std::vector<MetricFamily> out;
  const auto add = [&out](const char* name, const char* help, MetricType type, int64_t value) {
    Family family(name, help, type);
    if (type == MetricType::Counter) {
      family.counter({}, value);
    } else {
      family.gauge({}, static_cast<double>(value));
    }
    out.push_back(family.take());
  };
  add("connections", "Open gRPC connections.", MetricType::Gauge, now.connections);
  add("connections_refused_total", "Connections rejected: too many, or no file descriptor left.",
      MetricType::Counter, now.connections_refused);
  add("connections_closed_total", "gRPC connections closed because most calls ended at once.",
      MetricType::Counter, now.connections_closed);
  add("open_calls", "Open calls, counted from their headers on.", MetricType::Gauge,
      now.open_calls);
  add("pending_calls", "Calls that gRPC has created and no service has received.",
      MetricType::Gauge, now.pending_calls);
  add("pending_calls_expired_total", "Calls that no service received in time.", MetricType::Counter,
      now.pending_calls_expired);
  add("calls_refused_total", "Calls rejected because too many were open.", MetricType::Counter,
      now.calls_refused);
  add("log_dropped_total", "Log lines dropped because the log was not read.", MetricType::Counter,
      now.log_lines_dropped);
  add("memory_bytes", "Memory of calls, charged to their clients.", MetricType::Gauge,
      now.memory_bytes);
  add("memory_peak_bytes", "Largest value of tandem_memory_bytes since start.", MetricType::Gauge,
      now.memory_peak_bytes);
  add("memory_limit_bytes", "Limit of tandem_memory_bytes (from server.memory_bytes).",
      MetricType::Gauge, now.memory_limit_bytes);
  add("memory_refused_total", "Charges of memory refused at a limit.", MetricType::Counter,
      now.memory_refused);
  add("spans_exported_total", "Spans delivered to the collector (server.otlp).",
      MetricType::Counter, now.spans_exported);
  add("traces_dropped_total",
      "Calls whose spans were dropped: the collector is slow or unreachable.", MetricType::Counter,
      now.traces_dropped);
  add("kv_events_published_total", "Pages of the prefix cache stored or removed, as published.",
      MetricType::Counter, now.kv_events_published);
  add("kv_events_dropped_total", "The same, not published because too many waited.",
      MetricType::Counter, now.kv_events_dropped);
  add("stuck", "1 if a device, the loop or gRPC makes no progress.", MetricType::Gauge,
      now.stuck ? 1 : 0);
  return out;
}

std::vector<MetricFamily> Collector::Collect() const {
  std::vector<MetricFamily> out;
  const Engine* const engine = state_.engine.load();
  if (engine != nullptr) {
    out = engine_families(engine->metrics(), state_.refused, roles_of(engine->deployments()));
    for (MetricFamily& family : gateway_families_of(*engine)) out.push_back(std::move(family));
    for (MetricFamily& family : client_families(engine->client_uses())) {
      out.push_back(std::move(family));
    }
    for (MetricFamily& family : deployment_families(engine->deployment_states())) {
      out.push_back(std::move(family));
    }
    out.push_back(device_family(engine->devices()));
  }
  out.push_back(build_info_family());
  if (more_) {
    for (MetricFamily& family : more_()) out.push_back(std::move(family));
  }
  return out;
}

std::string exposition(const prometheus::Collectable& collectable) {
  return prometheus::TextSerializer().Serialize(collectable.Collect());
}

HttpResponse gateway_page(const ServerState& state) {
  const Engine* const engine = state.engine.load();
  if (engine == nullptr) return {503, "models are loading\n"};
  return {200, prometheus::TextSerializer().Serialize(gateway_families_of(*engine))};
}

}  // namespace tandem
