// What is known of a call before its message is read: who, since when, until when, and the ids that
// the log needs. Also the one line that a finished call leaves in the log.
#pragma once

#include <grpcpp/server_context.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/host/request.h"
#include "server/server_state.h"

namespace tandem {

struct CallInfo {
  const char* method = "";  // "Generate", ...
  std::string client;
  std::string peer;
  std::string traceparent;  // W3C trace context as the client sent it, if well formed
  std::string request_id;   // the client's, else one made here
  TimePoint arrived;
  TimePoint deadline = kNever;
  absl::Status admitted;  // UNAUTHENTICATED, PERMISSION_DENIED: the call must end with it
};

CallInfo begin_call(const char* method, const ServerState& state,
                    const grpc::ServerContextBase& context);
// Without gRPC: `peer` as gRPC names it, and the values of two headers.
CallInfo begin_call(const char* method, const ServerState& state, const std::string& peer,
                    absl::string_view authorization, absl::string_view traceparent);

// "req-" and 16 hexadecimal digits, not repeated by chance within a deployment's life.
std::string make_request_id();

// What the engine says of a request that has finished: of its first choice.
struct CallWork {
  std::string method;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t large_passes = 0;
  int64_t small_passes = 0;
  double large_seconds = 0;  // that its passes spent in batches
  double small_seconds = 0;
  TimePoint ended;
};

struct CallSummary {
  std::string model;
  std::optional<FinishReason> reason;  // of the first choice; here and below, see add()
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // of all choices
  double first_token_seconds = 0;
  bool reached_engine = false;
  CallWork work;

  void add(const Finished& choice);
};

// One line: INFO, or ERROR with the full status for a fault of ours. Counts in `state` a call that
// the engine never saw, and tells whoever listens there.
void end_call(ServerState& state, const CallInfo& info, const absl::Status& status,
              const CallSummary& summary);

// What a call without a request ends with.
absl::Status no_request();

// Whether the call's deadline is now: gRPC then cancels the call, and the engine, which knows the
// deadline too, ends it with the right status if it is left to.
bool deadline_imminent(const CallInfo& info);
bool deadline_imminent(const grpc::ServerContextBase& context);

// gRPC tells a passed deadline and a client that went away alike. This is DEADLINE_EXCEEDED in the
// one case and `status` in all others.
absl::Status classify_cancellation(const absl::Status& status, const CallInfo& info);

}  // namespace tandem
