// Converts a call to OpenTelemetry spans: one for the call, with children for queueing, prefill,
// decoding and each model. Attributes have the names of OpenTelemetry's conventions (rpc.*, http.*,
// gen_ai.*) if there is one, else the prefix "tandem.". Spans contain neither prompts nor outputs,
// nor messages that may quote them.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/host/requests/request.h"
#include "opentelemetry/proto/trace/v1/trace.pb.h"
#include "server/grpc/call_info.h"

namespace tandem {

// A call that has ended.
struct EndedCall {
  CallInfo info;
  CallSummary summary;
  absl::StatusCode code = absl::StatusCode::kOk;
  TimePoint ended;
};

// The models of a deployment; empty if it is unknown.
using ModelsOf = std::function<std::vector<ModelInDeployment>(const std::string& deployment)>;

class CallSpans {
 public:
  // `sample_ratio`: the share of new traces to keep, in [0, 1]. Callers decide for their own
  // traces.
  CallSpans(double sample_ratio, ModelsOf models_of, uint64_t seed);

  // `unix_offset`: the time from 1970 to the steady clock's epoch.
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
