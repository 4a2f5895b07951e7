// The state of a Generate request that gRPC and the OpenAI-compatible API share: its checked form,
// and the figures for its last message and its log line.
//
// Not thread-safe: the engine's events arrive one at a time.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/requests/request.h"
#include "server/grpc/call_info.h"
#include "server/grpc/response_to_proto.h"
#include "server/server_state.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// A request that is ready for the engine.
struct CheckedRequest {
  Engine* engine = nullptr;
  GenerateRequest request;
  bool with_tokens = false;  // in the response
  TokenBytes token_bytes;    // empty: without token texts
};

// Checks everything of `message` that needs no model, and fills `info` and `summary`. If it is OK,
// the request must be submitted.
absl::StatusOr<CheckedRequest> check_request(const v1::GenerateRequest& message,
                                             const ServerState& state, CallInfo* info,
                                             CallSummary* summary);

class CallRecord {
 public:
  explicit CallRecord(ServerState& s) : state(s) {}

  ServerState& state;
  CallInfo info;
  CallSummary summary;

  // The same as check_request().
  absl::StatusOr<CheckedRequest> check(const v1::GenerateRequest& message);

  // Events of the engine; on_finished() returns the message for the client.
  void on_chunk(const Chunk& event);
  v1::Finished on_finished(const Finished& event);
  // Several prompts: the number of choices of all of them. Call before the first event.
  void expect(int64_t choices) { choices_ = choices; }
  bool all_finished() const { return choices_ == 0; }

  // Ends the call: logs and counts it. False if it has already ended.
  bool end(const absl::Status& status);

 private:
  int64_t choices_ = 1;  // that have not finished
  std::optional<double> first_token_seconds_;
  bool ended_ = false;
};

}  // namespace tandem
