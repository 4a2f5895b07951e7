#include "server/observe/call_spans.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/edge/status_text.h"
#include "server/edge/traceparent.h"
#include "server/observe/otlp_attributes.h"

namespace tandem {
namespace {

namespace otel = opentelemetry::proto;
using otel::trace::v1::Span;

constexpr size_t kTraceIdBytes = 16;
constexpr size_t kSpanIdBytes = 8;

bool all_zero(const std::string& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

// Calls of the HTTP API have names like "openai/chat/completions".
bool is_http(const CallInfo& info) { return absl::StartsWith(info.method, "openai/"); }

void set_call_name(const CallInfo& info, Span* span) {
  const absl::string_view method = info.method;
  if (is_http(info)) {
    const std::string route = absl::StrCat("/v1/", method.substr(method.find('/') + 1));
    const char* const verb = route == "/v1/models" ? "GET" : "POST";
    span->set_name(absl::StrCat(verb, " ", route));
    set_attribute("http.request.method", verb, span);
    set_attribute("http.route", route, span);
    return;
  }
  const bool of_models = method == "ListModels" || method == "GetModel";
  const char* const service = of_models ? "tandem.v1.Models" : "tandem.v1.Generation";
  span->set_name(absl::StrCat(service, "/", method));
  set_attribute("rpc.system", "grpc", span);
  set_attribute("rpc.service", service, span);
  set_attribute("rpc.method", method, span);
}

// Whether the error is the server's (OpenTelemetry's conventions for RPC).
bool is_error(absl::StatusCode code) {
  using enum absl::StatusCode;
  return absl::c_linear_search(
      std::array{kUnknown, kDeadlineExceeded, kUnimplemented, kInternal, kUnavailable, kDataLoss},
      code);
}

void describe_call(const EndedCall& call, Span* span) {
  span->set_kind(Span::SPAN_KIND_SERVER);
  set_call_name(call.info, span);
  set_attribute("tandem.status", code_name(call.code), span);
  if (!is_http(call.info))
    set_attribute("rpc.grpc.status_code", static_cast<int64_t>(call.code), span);
  if (is_error(call.code)) {
    span->mutable_status()->set_code(otel::trace::v1::Status::STATUS_CODE_ERROR);
  }
  set_attribute("tandem.request_id", call.info.request_id, span);
  set_attribute("tandem.client", call.info.client, span);
  const CallSummary& summary = call.summary;
  if (!summary.model.empty() && summary.reached_engine) {
    set_attribute("gen_ai.request.model", summary.model, span);
    if (!summary.adapter.empty()) set_attribute("tandem.adapter", summary.adapter, span);
  }
  if (!summary.reason.has_value()) return;
  add_attribute("gen_ai.response.finish_reasons", span)
      ->mutable_array_value()
      ->add_values()
      ->set_string_value(finish_reason_name(*summary.reason));
  set_attribute("gen_ai.usage.input_tokens", summary.prompt_tokens, span);
  set_attribute("gen_ai.usage.output_tokens", summary.completion_tokens, span);
  set_attribute("tandem.method", summary.work.method, span);
}

Duration duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

CallSpans::CallSpans(double sample_ratio, ModelsOf models_of, uint64_t seed)
    : sample_ratio_(sample_ratio), models_of_(std::move(models_of)), random_(seed) {}

std::string CallSpans::random_bytes(size_t n) {
  std::string out;
  do {
    out.clear();
    while (out.size() < n) {
      const uint64_t word = random_();
      for (size_t i = 0; i < sizeof(word) && out.size() < n; ++i) {
        out.push_back(static_cast<char>(word >> (8 * i)));
      }
    }
  } while (all_zero(out));
  return out;
}

// Decides by the trace id, like every other participant of the trace (TraceIdRatioBased).
bool CallSpans::keeps(const std::string& trace_id) const {
  uint64_t low = 0;
  for (size_t i = kTraceIdBytes - 8; i < kTraceIdBytes; ++i) {
    low = (low << 8) | static_cast<uint8_t>(trace_id[i]);
  }
  return std::ldexp(static_cast<double>(low >> 11), -53) < sample_ratio_;
}

std::vector<Span> CallSpans::of(const EndedCall& call, Duration unix_offset) {
  const std::optional<TraceParent> parent = parse_traceparent(call.info.traceparent);
  const std::string trace_id = parent ? parent->trace_id : random_bytes(kTraceIdBytes);
  if (parent ? !parent->sampled : !keeps(trace_id)) return {};

  std::vector<Span> out;
  const auto add = [&](const std::string& above, TimePoint from, TimePoint to) {
    const auto nanoseconds = [&](TimePoint t) {
      return static_cast<uint64_t>((t.time_since_epoch() + unix_offset).count());
    };
    Span& span = out.emplace_back();
    span.set_trace_id(trace_id);
    span.set_span_id(random_bytes(kSpanIdBytes));
    span.set_parent_span_id(above);
    span.set_kind(Span::SPAN_KIND_INTERNAL);
    span.set_start_time_unix_nano(nanoseconds(from));
    span.set_end_time_unix_nano(nanoseconds(std::max(from, to)));
    return &span;
  };
  describe_call(call, add(parent ? parent->span_id : "", call.info.arrived, call.ended));
  const CallWork& work = call.summary.work;
  if (!call.summary.reason.has_value()) return out;

  // The engine reports durations. They are subtracted from the end of its work.
  const std::string above = out.front().span_id();
  const TimePoint first = std::max(call.info.arrived, work.ended - duration(work.decode_seconds));
  const TimePoint admitted = std::max(call.info.arrived, first - duration(work.prefill_seconds));
  const TimePoint queued = std::max(call.info.arrived, admitted - duration(work.queue_seconds));
  add(above, queued, admitted)->set_name("queue");
  add(above, admitted, first)->set_name("prefill");
  add(above, first, work.ended)->set_name("decode");
  for (const ModelInDeployment& model : models_of_(call.summary.model)) {
    const bool large = model.role == "large";
    const int64_t passes = large ? work.large_passes : work.small_passes;
    if (passes == 0 || (!large && model.role != "small")) continue;
    Span* const span = add(above, admitted, work.ended);
    span->set_name(model.role);
    set_attribute("tandem.model", model.name, span);
    set_attribute("tandem.device", model.device, span);
    set_attribute("tandem.passes", passes, span);
    set_attribute("tandem.pass_seconds", large ? work.large_seconds : work.small_seconds, span);
  }
  return out;
}

}  // namespace tandem
