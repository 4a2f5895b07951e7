#include "engine/host/config/config_limits.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/host/config/config_fields.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Unset fields do not change `out`.
absl::Status client_from(const pb::ClientLimits& in, const ConfigFields& fields,
                         const std::string& path, ClientLimits* out) {
  const auto number = [&](absl::string_view field, bool set, auto value, auto min, auto max,
                          auto* to) {
    return fields.number(absl::StrCat(path, field), set, value, min, max, to);
  };
  TANDEM_RETURN_IF_ERROR(number("max_priority", in.has_max_priority(), in.max_priority(), -100, 100,
                                &out->max_priority));
  TANDEM_RETURN_IF_ERROR(number("max_requests", in.has_max_requests(), in.max_requests(), 0,
                                1 << 20, &out->max_requests));
  TANDEM_RETURN_IF_ERROR(number("requests_per_minute", in.has_requests_per_minute(),
                                in.requests_per_minute(), 0.0, 1e9, &out->requests_per_minute));
  return number("tokens_per_minute", in.has_tokens_per_minute(), in.tokens_per_minute(), 0.0, 1e12,
                &out->tokens_per_minute);
}

}  // namespace

absl::Status limits_from(const ConfigFile& file, const std::vector<DeviceConfig>& devices,
                         LimitsConfig* out) {
  const pb::Limits& in = file.proto().limits();
  const ConfigFields fields(file, "limits.");
  // A GPU needs many rows for its full speed. On a CPU, large batches delay other requests.
  const auto is_gpu = [](const DeviceConfig& d) { return d.kind == DeviceKind::kCuda; };
  if (!devices.empty() && std::ranges::all_of(devices, is_gpu)) {
    out->step_rows = kGpuStepRows;
    out->prefill_chunk_rows = kGpuChunkRows;
  }
  TANDEM_NUMBER(fields, in, max_running, 1, 65536, &out->max_running);
  TANDEM_NUMBER(fields, in, max_waiting, 0, 1 << 20, &out->max_waiting);
  TANDEM_NUMBER(fields, in, max_waiting_tokens, int64_t{1}, kMaxInt32, &out->max_waiting_tokens);
  TANDEM_NUMBER(fields, in, max_waiting_bytes, int64_t{64} << 10, int64_t{1} << 40,
                &out->max_waiting_bytes);
  TANDEM_NUMBER(fields, in, max_waiting_per_client, 0, 1 << 20, &out->max_waiting_per_client);
  TANDEM_NUMBER(fields, in, step_rows, 1, 65536, &out->step_rows);
  TANDEM_NUMBER(fields, in, prefill_chunk_rows, 1, 65536, &out->prefill_chunk_rows);
  TANDEM_NUMBER(fields, in, max_new_tokens, 0, 1 << 24, &out->max_new_tokens);
  TANDEM_NUMBER(fields, in, default_max_new_tokens, 1, 1 << 24, &out->default_max_new_tokens);
  TANDEM_NUMBER(fields, in, queue_seconds, 1e-3, 86400.0, &out->queue_seconds);
  if (in.preemption() == pb::Limits::PREEMPTION_YOUNGEST) out->preemption = Preemption::kYoungest;
  TANDEM_NUMBER(fields, in, max_choices, 1, 16, &out->max_choices);
  TANDEM_NUMBER(fields, in, fair_prompt_weight, 0.0, 1e6, &out->fair_prompt_weight);
  TANDEM_NUMBER(fields, in, fair_token_weight, 1e-6, 1e6, &out->fair_token_weight);
  for (const auto& [client, weight] : in.client_weights()) {
    if (!(weight >= 1e-3 && weight <= 1e3)) {  // NaN too
      return fields.error(absl::StrCat("client_weights[", quote_value(client), "]"),
                          absl::StrCat(weight), "[0.001, 1000]");
    }
    out->client_weights[client] = weight;
  }
  TANDEM_NUMBER(fields, in, slow_reader_hold_seconds, 0.0, 86400.0, &out->slow_reader_hold_seconds);
  TANDEM_NUMBER(fields, in, stalled_stream_seconds, 1e-3, 86400.0, &out->stalled_stream_seconds);
  TANDEM_RETURN_IF_ERROR(
      client_from(in.default_client(), fields, "default_client.", &out->default_client));
  for (const auto& [client, own] : in.clients()) {
    ClientLimits& to = out->clients[client] = out->default_client;
    TANDEM_RETURN_IF_ERROR(
        client_from(own, fields, absl::StrCat("clients[", quote_value(client), "]."), &to));
  }
  return absl::OkStatus();
}

}  // namespace tandem
