// The facts of a call that are known before its message is parsed: client, arrival, deadline, ids.
// Also the log line of a finished call.
#pragma once

#include <grpcpp/server_context.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/host/requests/request.h"
#include "server/edge/http_reader.h"
#include "server/edge/peer.h"
#include "server/gateway_headers.h"
#include "server/server_state.h"

namespace tandem {

struct CallInfo {
  const char* method = "";  // "Generate", ...
  std::string client;
  std::string identity;         // of the sender, also where a gateway names another client
  std::optional<int> priority;  // by a gateway, in place of the request's
  std::string peer;
  std::string traceparent;  // W3C trace context from the client, if well formed
  std::string request_id;   // the client's, else generated
  TimePoint arrived;
  TimePoint deadline = kNever;
  absl::Status authenticated;  // if not OK, the call ends with it
};

CallInfo begin_call(const char* method, const ServerState& state,
                    const grpc::ServerContextBase& context);
// The same for HTTP. A request id that check_request_id() rejects is replaced: proxies add theirs
// without the client's knowledge.
CallInfo begin_call(const char* method, const ServerState& state, const HttpMessage& head,
                    const HttpPeer& peer);

// The priority of a call whose request has `requested`. A gateway's is lowered to the client's
// limit; the engine refuses a request's own above it.
int priority_of(const CallInfo& info, const Engine& engine, int requested);

// "req-" and 16 hexadecimal digits; unique for all practical purposes.
std::string make_request_id();

// The engine's figures of a finished request, for its first choice.
struct CallWork {
  std::string method;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t large_passes = 0;
  int64_t small_passes = 0;
  double large_seconds = 0;  // time in batches
  double small_seconds = 0;
  TimePoint ended;
};

struct CallSummary {
  std::string model;
  std::string adapter;  // that the request names in a field or in its model; empty: none
  std::optional<FinishReason> reason;  // of the first choice
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // of all choices
  double first_token_seconds = 0;
  bool reached_engine = false;
  CallWork work;

  void add(const Finished& choice);
};

// Logs one line: INFO, or ERROR with the full status for an internal fault. Counts a call that did
// not reach the engine, and calls state.call_ended.
void end_call(ServerState& state, const CallInfo& info, const absl::Status& status,
              const CallSummary& summary);

// The status of a call whose client sent no request.
absl::Status no_request();

// Whether the call is about to reach its deadline. gRPC cancels such a call. The engine knows the
// deadline too and ends the request with the right status, so the server must not cancel it.
bool deadline_imminent(const CallInfo& info);
bool deadline_imminent(const grpc::ServerContextBase& context);

// Whether a call that its client has cancelled, or whose deadline has passed, counts as abandoned
// (OpenCalls). Calls of a gateway do not: it sends those of many clients on one connection.
// `has_request`: the request has been read.
bool is_abandoned(const CallInfo& info, bool has_request);

// gRPC reports a passed deadline and a disconnect alike, as CANCELLED. Returns DEADLINE_EXCEEDED
// for the former, else `status`.
absl::Status classify_cancellation(const absl::Status& status, const CallInfo& info);

}  // namespace tandem
