#include "server/grpc/call_record.h"

#include "engine/base/status.h"
#include "server/edge/peer.h"
#include "server/grpc/request_from_proto.h"

namespace tandem {

absl::StatusOr<CheckedRequest> check_request(const v1::GenerateRequest& message,
                                             const ServerState& state, CallInfo* info,
                                             CallSummary* summary) {
  summary->model = message.model();
  TANDEM_RETURN_IF_ERROR(check_request_id(message.request_id()));
  if (!message.request_id().empty()) info->request_id = message.request_id();
  CheckedRequest out;
  TANDEM_ASSIGN_OR_RETURN(out.request, generate_request_from(message));
  out.request.request_id = info->request_id;
  out.request.client = info->client;
  out.request.host = host_of(info->peer);
  out.request.deadline = info->deadline;
  TANDEM_ASSIGN_OR_RETURN(out.engine, state.ready_engine());
  summary->adapter = out.engine->adapter(out.request.model, out.request.adapter);
  out.request.priority = priority_of(*info, *out.engine, out.request.priority);
  out.with_tokens = wants_tokens(message);
  if (wants_token_texts(message)) out.token_bytes = out.engine->token_bytes(out.request);
  summary->reached_engine = true;
  return out;
}

absl::StatusOr<CheckedRequest> CallRecord::check(const v1::GenerateRequest& message) {
  auto checked = check_request(message, state, &info, &summary);
  if (checked.ok()) choices_ = checked->request.n;
  return checked;
}

void CallRecord::on_chunk(const Chunk& event) {
  if (event.tokens.empty() || first_token_seconds_.has_value()) return;
  first_token_seconds_ = seconds(std::chrono::steady_clock::now() - info.arrived);
}

v1::Finished CallRecord::on_finished(const Finished& event) {
  --choices_;
  summary.add(event);
  summary.first_token_seconds = first_token_seconds_.value_or(0);
  return finished_to_proto(event, summary.first_token_seconds);
}

bool CallRecord::end(const absl::Status& status) {
  if (ended_) return false;
  ended_ = true;
  end_call(state, info, status, summary);
  return true;
}

}  // namespace tandem
