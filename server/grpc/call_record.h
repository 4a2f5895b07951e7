// What is kept of a request while it runs, whichever door it came by: for the engine, for the last
// words of its answer, and for its line in the log.
//
// One event at a time: those of the engine, or the end of a request that never reached it.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/request.h"
#include "server/grpc/call_info.h"
#include "server/grpc/response_to_proto.h"
#include "server/server_state.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// A request that is ready for the engine.
struct CheckedRequest {
  Engine* engine = nullptr;
  GenerateRequest request;
  bool with_tokens = false;  // in the answer
  TokenBytes token_bytes;    // empty: without their texts
};

// Checks all of `message` that needs no model, and says in `info` and `summary` what there is to
// say of it. When this is OK the request is submitted.
absl::StatusOr<CheckedRequest> check_request(const v1::GenerateRequest& message,
                                             const ServerState& state, CallInfo* info,
                                             CallSummary* summary);

class CallRecord {
 public:
  explicit CallRecord(ServerState& s) : state(s) {}

  ServerState& state;
  CallInfo info;
  CallSummary summary;

  // As check_request().
  absl::StatusOr<CheckedRequest> check(const v1::GenerateRequest& message);

  // What the client is told of events.
  void on_chunk(const Chunk& event);
  v1::Finished on_finished(const Finished& event);
  bool all_finished() const { return choices_ == 0; }

  // The call ends with `status`: logged and counted. False: it had ended already.
  bool end(const absl::Status& status);

 private:
  int64_t choices_ = 1;  // that have not finished
  std::optional<double> first_token_seconds_;
  bool ended_ = false;
};

}  // namespace tandem
