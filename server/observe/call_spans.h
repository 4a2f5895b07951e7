// A call as spans of OpenTelemetry: one for the call, below it its time in the queue, to the first
// token and from there to the end, and one for each model that worked for it. Attributes have the
// names of OpenTelemetry's conventions (rpc.*, http.*, gen_ai.*) where these have one, else
// "tandem.". Neither prompts nor outputs, nor messages that might quote them.
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/host/request.h"
#include "opentelemetry/proto/trace/v1/trace.pb.h"
#include "server/grpc/call_info.h"

namespace tandem {

// The caller's span, as W3C's trace context has it.
struct TraceParent {
  std::string trace_id;  // 16 bytes
  std::string span_id;   // 8 bytes
  bool sampled = false;
};
// None: not well formed, or ids of zeros, which are invalid.
std::optional<TraceParent> parse_traceparent(absl::string_view header);

// A call that has ended. Cheap to make.
struct EndedCall {
  CallInfo info;
  CallSummary summary;
  absl::StatusCode code = absl::StatusCode::kOk;
  TimePoint ended;
};

// The models of a deployment; empty: it is unknown.
using ModelsOf = std::function<std::vector<ModelInDeployment>(const std::string& deployment)>;

class CallSpans {
 public:
  // Of the traces that begin here this share is kept, [0, 1]; a caller has decided for its own.
  CallSpans(double sample_ratio, ModelsOf models_of, uint64_t seed);

  // `unix_offset`: what makes nanoseconds since 1970 of the steady clock's.
  std::vector<opentelemetry::proto::trace::v1::Span> of(const EndedCall& call,
                                                        Duration unix_offset);

 private:
  std::string random_bytes(size_t n);
  bool keeps(const std::string& trace_id) const;

  const double sample_ratio_;
  const ModelsOf models_of_;
  std::mt19937_64 random_;
};

}  // namespace tandem
