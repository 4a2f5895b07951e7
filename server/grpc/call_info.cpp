#include "server/grpc/call_info.h"

#include <sys/random.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "server/edge/status_text.h"
#include "server/edge/traceparent.h"
#include "server/grpc/request_from_proto.h"
#include "server/http/credentials.h"
#include "server/observe/log.h"

namespace tandem {
namespace {

constexpr size_t kMaxModelName = 64;  // in the log

// gRPC may notice a passed deadline this much earlier than the engine.
constexpr auto kDeadlineSlack = std::chrono::milliseconds(10);

// Converts gRPC's deadline, on the wall clock, to the steady clock.
TimePoint steady_deadline(std::chrono::system_clock::time_point deadline, TimePoint now) {
  const auto wall = std::chrono::system_clock::now();
  // Without a deadline, gRPC's is in the far future, and a sum with it would overflow.
  if (deadline - wall > std::chrono::hours(24 * 365)) return kNever;
  return now + std::chrono::duration_cast<Duration>(deadline - wall);
}

CallInfo begun(const char* method, const ServerState& state, const std::string& peer,
               absl::string_view traceparent, absl::StatusOr<std::string> client,
               const GatewayHeaders& gateway) {
  CallInfo info;
  info.method = method;
  info.arrived = std::chrono::steady_clock::now();
  info.peer = peer;
  info.request_id = make_request_id();
  if (parse_traceparent(traceparent).has_value()) info.traceparent = std::string(traceparent);
  info.authenticated = client.status();
  if (!client.ok()) {
    info.client = host_of_peer(peer);
    return info;
  }
  info.identity = *client;
  Sender sender = sender_of(state.config, *std::move(client), gateway);
  info.client = std::move(sender.client);
  info.priority = sender.priority;
  return info;
}

}  // namespace

std::string make_request_id() {
  // From the system, in blocks: a client that knows its own ids learns nothing about others.
  struct Block {
    std::array<uint64_t, 32> ids{};
    size_t used = 32;
  };
  thread_local Block block;
  if (block.used == block.ids.size()) {
    TANDEM_CHECK(getentropy(block.ids.data(), sizeof(block.ids)) == 0);
    block.used = 0;
  }
  return absl::StrCat("req-", absl::Hex(block.ids[block.used++], absl::kZeroPad16));
}

CallInfo begin_call(const char* method, const ServerState& state,
                    const grpc::ServerContextBase& context) {
  const auto find = [&metadata = context.client_metadata()](const char* name) {
    const auto found = metadata.find(name);
    if (found == metadata.end()) return std::string();
    return std::string(found->second.data(), found->second.size());
  };
  CallInfo info = begun(method, state, context.peer(), find("traceparent"),
                        state.authenticator()->identify(context), gateway_headers(find));
  info.deadline = steady_deadline(context.deadline(), info.arrived);
  return info;
}

CallInfo begin_call(const char* method, const ServerState& state, const HttpMessage& head,
                    const HttpPeer& peer) {
  const auto find = [&head](const char* name) { return head.header(name); };
  CallInfo info =
      begun(method, state, peer.address, find("traceparent"),
            state.authenticator()->identify(credentials_of(head), peer), gateway_headers(find));
  const std::string request_id = find("x-request-id");
  if (!request_id.empty() && check_request_id(request_id).ok()) info.request_id = request_id;
  return info;
}

int priority_of(const CallInfo& info, const Engine& engine, int requested) {
  if (!info.priority.has_value()) return requested;
  return std::min(*info.priority, engine.max_priority(info.client));
}

void CallSummary::add(const Finished& choice) {
  if (!reason.has_value() || choice.index == 0) {
    reason = choice.reason;
    const MethodStats& stats = choice.stats;
    work = {choice.method,        stats.queue_seconds, stats.prefill_seconds,
            stats.decode_seconds, stats.large_passes,  stats.small_passes,
            stats.large_seconds,  stats.small_seconds, std::chrono::steady_clock::now()};
  }
  prompt_tokens = choice.usage.prompt_tokens;
  completion_tokens += choice.usage.completion_tokens;
}

void end_call(ServerState& state, const CallInfo& info, const absl::Status& status,
              const CallSummary& summary) {
  if (!status.ok() && !summary.reached_engine) {
    const auto code = std::clamp(static_cast<int>(status.code()), 0, kStatusCodes - 1);
    state.refused.by_status[static_cast<size_t>(code)].add();
  }
  if (state.call_ended) state.call_ended(info, summary, status);
  LogFields fields = {{"method", info.method},
                      {"request_id", info.request_id},
                      {"client", info.client},
                      {"model", summary.model, kMaxModelName},
                      {"status", code_name(status.code())},
                      {"seconds", seconds(std::chrono::steady_clock::now() - info.arrived)}};
  if (!summary.adapter.empty()) {
    fields.emplace_back("adapter", summary.adapter, kMaxModelName);
  }
  if (!info.traceparent.empty()) fields.emplace_back("traceparent", info.traceparent);
  if (summary.reason.has_value()) {
    fields.emplace_back("finish_reason", finish_reason_name(*summary.reason));
    fields.emplace_back("prompt_tokens", summary.prompt_tokens);
    fields.emplace_back("completion_tokens", summary.completion_tokens);
    fields.emplace_back("first_token_seconds", summary.first_token_seconds);
  }
  if (is_fault(status)) {
    fields.emplace_back("error", status.message(), LogField::kMaxMessage);
    log_error("call", fields);
  } else {
    log_info("call", fields);
  }
}

absl::Status no_request() {
  return absl::CancelledError("the client sent no request, or disconnected");
}

bool deadline_imminent(const CallInfo& info) {
  return info.deadline != kNever &&
         std::chrono::steady_clock::now() + kDeadlineSlack >= info.deadline;
}

bool deadline_imminent(const grpc::ServerContextBase& context) {
  return std::chrono::system_clock::now() + kDeadlineSlack >= context.deadline();
}

bool is_abandoned(const CallInfo& info, bool has_request) {
  if (info.identity != info.client) return false;
  return !has_request || std::chrono::steady_clock::now() < info.arrived + OpenCalls::kShortLife;
}

absl::Status classify_cancellation(const absl::Status& status, const CallInfo& info) {
  if (status.code() != absl::StatusCode::kCancelled || info.deadline == kNever ||
      std::chrono::steady_clock::now() < info.deadline) {
    return status;
  }
  return absl::DeadlineExceededError("the call's deadline passed");
}

}  // namespace tandem
