#include "server/grpc/generate_call.h"

#include <utility>

#include "engine/base/status.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/raw_message.h"

namespace tandem {
namespace {

// Merged messages stay far below the default 4 MiB limit of clients.
constexpr int64_t kMaxJoinedBytes = 256 << 10;

// A completion that calls `Method` of `call`.
template <void (GenerateCall::*Method)(bool)>
CallThread::Completion completion(GenerateCall* call) {
  return {[](void* whom, bool ok) { (static_cast<GenerateCall*>(whom)->*Method)(ok); }, call};
}

}  // namespace

// Forwards the engine's events to the call.
class GenerateCall::StreamSink final : public Sink {
 public:
  explicit StreamSink(std::shared_ptr<GenerateCall> call) : call_(std::move(call)) {}
  void made(int64_t tokens) override { call_->out_.produced(tokens); }
  void started(const Started& event) override { call_->on_started(event); }
  void chunk(Chunk event) override { call_->on_chunk(std::move(event)); }
  void finished(const Finished& event) override { call_->on_finished(event); }
  void failed(const absl::Status& status) override { call_->on_failed(status); }

 private:
  const std::shared_ptr<GenerateCall> call_;
};

GenerateCall::GenerateCall(ServerState& state, RawService::AsyncMethod method, CallThread& arrivals,
                           CallThread& streams)
    : method_(method),
      arrivals_(arrivals),
      streams_(streams),
      arrived_(completion<&GenerateCall::arrived>(this)),
      read_(completion<&GenerateCall::read>(this)),
      written_(completion<&GenerateCall::written>(this)),
      finished_(completion<&GenerateCall::finished>(this)),
      done_(completion<&GenerateCall::done>(this)),
      out_({state.config.max_unread_bytes, state.config.max_unread_tokens, kMaxJoinedBytes}, this),
      record_(state) {}

void GenerateCall::accept(ServerState& state, RawService::AsyncMethod method, CallThread& arrivals,
                          CallThread& streams) {
  const std::shared_ptr<GenerateCall> call(new GenerateCall(state, method, arrivals, streams));
  call->self_ = call;
  arrivals.enter();
  call->context_.AsyncNotifyWhenDone(&call->done_);
  method.await(&call->arrived_, &call->context_, &call->writer_, streams, arrivals);
}

// --- Arrivals thread

void GenerateCall::arrived(bool ok) {
  CallThread& arrivals = arrivals_;
  if (!ok) {
    self_.reset();  // the server is closing; may destroy *this
    return arrivals.leave();
  }
  const std::shared_ptr<GenerateCall> call = self_;  // may end before this returns
  streams_.enter();
  accept(record_.state, method_, arrivals_, streams_);
  record_.info = begin_call("Generate", record_.state, context_);
  const absl::Status admitted = admit();
  if (admitted.ok()) {
    cancel_after(kRequestTime, &context_, &record_.state.timeouts, &request_timeout_);
    return writer_.Read(&request_, &read_);  // parse() calls leave()
  }
  on_failed(admitted);
  arrivals.leave();
}

absl::Status GenerateCall::admit() {
  const absl::Status entered = record_.state.calls.enter(record_.info.peer);
  entered_ = entered.ok();
  TANDEM_RETURN_IF_ERROR(entered);
  TANDEM_RETURN_IF_ERROR(record_.info.authenticated);
  TANDEM_ASSIGN_OR_RETURN(memory_, charge_call(record_.state, record_.info, kCallBytes));
  TANDEM_ASSIGN_OR_RETURN(unread_memory_, charge_call(record_.state, record_.info, 0));
  return absl::OkStatus();
}

void GenerateCall::parse() {
  const std::shared_ptr<GenerateCall> call = self_;  // may end before this returns
  const absl::Status status = submit();
  if (!status.ok()) on_failed(status);
  arrivals_.leave();
}

absl::StatusOr<CheckedRequest> GenerateCall::parse_request() {
  v1::GenerateRequest message;
  const absl::Status parsed = parse_message(request_, &message, &memory_);
  request_.Clear();  // frees the receive buffer
  TANDEM_RETURN_IF_ERROR(parsed);
  return record_.check(message);
}

absl::Status GenerateCall::submit() {
  TANDEM_ASSIGN_OR_RETURN(CheckedRequest checked, parse_request());
  memory_.resize(kCallBytes);  // from here on the engine charges the request
  engine_ = checked.engine;
  with_tokens_ = checked.with_tokens;
  token_bytes_ = std::move(checked.token_bytes);
  id_ =
      engine_->submit(std::move(checked.request), std::make_shared<StreamSink>(shared_from_this()));
  out_.attach();
  return absl::OkStatus();
}

// --- Events of the engine

void GenerateCall::on_started(const Started& event) {
  v1::GenerateResponse message;
  *message.mutable_started() = started_to_proto(event);
  out_.put({to_buffer(message), 64 + static_cast<int64_t>(event.request_id.size())});
}

void GenerateCall::on_chunk(Chunk event) {
  record_.on_chunk(event);
  PendingChunk chunk(std::move(event), with_tokens_, token_bytes_);
  if (chunk.empty()) {  // such as part of a character, if only text is requested
    out_.skip(static_cast<int64_t>(chunk.tokens()));
  } else {
    out_.put(StreamItem(std::move(chunk)));
  }
}

void GenerateCall::on_finished(const Finished& event) {
  v1::GenerateResponse message;
  *message.mutable_finished() = record_.on_finished(event);
  const auto& trace = message.finished().trace();  // the rest is small
  const auto bytes = message.finished().has_trace() ? trace.ByteSizeLong() : 0;
  StreamItem item(to_buffer(message), static_cast<int64_t>(bytes));
  if (!record_.all_finished()) return out_.put(std::move(item));
  end(absl::OkStatus(), std::move(item));  // sent with the last message
}

void GenerateCall::on_failed(const absl::Status& status) {
  end(status.ok() ? absl::InternalError("failed with OK")
                  : classify_cancellation(status, record_.info));
}

// Logs before the client can see the end.
void GenerateCall::end(const absl::Status& status, std::optional<StreamItem> last) {
  if (!record_.end(status)) return;
  const ServerConfig& config = record_.state.config;
  cancel_after(answer_time(config.stalled_stream, config.max_unread_bytes), &context_,
               &record_.state.timeouts, &answer_timeout_);
  out_.end(status, std::move(last));
}

// --- Streams thread

void GenerateCall::read(bool ok) {
  request_timeout_.stop();
  has_request_ = ok;
  if (ok) return arrivals_.post(&parse_);
  on_failed(no_request());
  arrivals_.leave();
}

void GenerateCall::write(StreamItem item) { writer_.Write(item.to_buffer(), &written_); }

void GenerateCall::write_last(StreamItem item) {
  writer_.WriteAndFinish(item.to_buffer(), grpc::WriteOptions(), grpc::Status::OK, &finished_);
}

void GenerateCall::finish(const absl::Status& status) {
  add_retry_pushback(status, &context_);
  writer_.Finish(to_grpc(status, record_.info.request_id), &finished_);
}

void GenerateCall::done(bool) {
  abandoned_ = context_.IsCancelled() && is_abandoned(record_.info, has_request_);
  out_.done(context_.IsCancelled() && !deadline_imminent(context_));
}

void GenerateCall::release() {
  request_timeout_.stop();
  answer_timeout_.stop();
  memory_.release();
  unread_memory_.release();
  if (entered_) record_.state.calls.leave(record_.info.peer, abandoned_);
  CallThread& streams = streams_;
  self_.reset();  // may destroy *this
  streams.leave();
}

}  // namespace tandem
