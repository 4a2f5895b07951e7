// Converts the engine's counters (engine/sched/metrics.h) to Prometheus metrics at each scrape.
// Names, labels and buckets are documented in docs/ and pass `promtool check metrics`.
//
// Thread-safe.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/host/requests/quotas.h"
#include "server/edge/http_endpoint.h"
#include "server/server_state.h"

namespace tandem {

class Collector final : public prometheus::Collectable {
 public:
  using Families = std::function<std::vector<prometheus::MetricFamily>()>;

  // `state` outlives the collector. Before the engine is loaded, there are only build_info and
  // `more`.
  explicit Collector(const ServerState& state, Families more = {})
      : state_(state), more_(std::move(more)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const ServerState& state_;
  const Families more_;
};

// The parts, for tests. `roles`: (loaded model, role) of every deployment.
std::vector<prometheus::MetricFamily> engine_families(
    const Metrics& metrics, const RefusedCalls& refused,
    const std::vector<std::pair<std::string, std::string>>& roles);
// The gauges that a gateway's endpoint picker reads. A picker takes the first series of a name, so
// each name has one series: the total of all deployments. The KV gauges cover the large models.
// `vllm:` names repeat them with the label model_name, which is the first deployment. With LoRA
// adapters, vllm:lora_requests_info lists those of running and waiting requests; its value is
// `unix_time`.
std::vector<prometheus::MetricFamily> gateway_families(
    const Metrics& metrics, const std::vector<std::pair<std::string, std::string>>& roles,
    const std::string& deployment, int64_t unix_time);
std::vector<prometheus::MetricFamily> client_families(
    const std::map<std::string, ClientUse>& clients);
// Of the deployments that take requests.
std::vector<prometheus::MetricFamily> deployment_families(
    const std::vector<DeploymentState>& deployments);
prometheus::MetricFamily device_family(const std::vector<DeviceInfo>& devices);
prometheus::MetricFamily build_info_family();

// Figures of connections, calls and the log.
struct EdgeStats {
  int64_t connections = 0;
  int64_t connections_refused = 0;
  int64_t connections_closed = 0;
  int64_t open_calls = 0;
  int64_t pending_calls = 0;
  int64_t pending_calls_expired = 0;
  int64_t calls_refused = 0;
  int64_t log_lines_dropped = 0;
  int64_t memory_bytes = 0;  // of the account (MemoryAccount), as the next three
  int64_t memory_peak_bytes = 0;
  int64_t memory_limit_bytes = 0;
  int64_t memory_refused = 0;
  bool stuck = false;
  int64_t spans_exported = 0;
  int64_t traces_dropped = 0;  // calls whose spans were not sent
  int64_t kv_events_published = 0;
  int64_t kv_events_dropped = 0;
};
std::vector<prometheus::MetricFamily> edge_families(const EdgeStats& now);

// Text exposition format 0.0.4.
std::string exposition(const prometheus::Collectable& collectable);

// gateway_families() alone, as text. Pickers scrape it every 50 ms. 503 while models load.
HttpResponse gateway_page(const ServerState& state);

}  // namespace tandem
