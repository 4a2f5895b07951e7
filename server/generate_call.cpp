#include "server/generate_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/grpc_status.h"
#include "server/raw_message.h"
#include "server/request_from_proto.h"

namespace tandem {
namespace {

// A joined message stays far below the 4 MiB that clients accept by default.
constexpr size_t kMaxJoinedBytes = 256 << 10;
// A message with more tokens than this is not kept to be used again.
constexpr int kMaxSpareTokens = 4;

// About what a chunk costs on the wire and in the queue.
size_t weight(const Chunk& chunk) {
  size_t bytes = 32 + chunk.text.size();
  for (const TokenInfo& token : chunk.tokens) bytes += 16 + 24 * token.top.size();
  return bytes;
}

}  // namespace

// What the engine sees of the call.
class GenerateCall::StreamSink final : public Sink {
 public:
  explicit StreamSink(std::shared_ptr<GenerateCall> call) : call_(std::move(call)) {}
  void started(const Started& event) override { call_->on_started(event); }
  void chunk(Chunk event) override { call_->on_chunk(std::move(event)); }
  void finished(const Finished& event) override { call_->on_finished(event); }
  void failed(const absl::Status& status) override { call_->on_failed(status); }

 private:
  const std::shared_ptr<GenerateCall> call_;
};

GenerateCall::GenerateCall(ServerState& state, grpc::CallbackServerContext* context)
    : state_(state), info_(begin_call("Generate", state, *context)) {}

GenerateCall* GenerateCall::start(ServerState& state, grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request) {
  auto call = std::shared_ptr<GenerateCall>(new GenerateCall(state, context));
  call->self_ = call;
  const absl::Status status = call->submit(request);
  if (!status.ok()) call->on_failed(status);
  return call.get();
}

absl::Status GenerateCall::submit(const grpc::ByteBuffer& bytes) {
  TANDEM_RETURN_IF_ERROR(info_.admitted);
  v1::GenerateRequest message;
  TANDEM_RETURN_IF_ERROR(parse_message(bytes, &message));
  summary_.model = message.model();
  TANDEM_RETURN_IF_ERROR(check_request_id(message.request_id()));
  if (!message.request_id().empty()) info_.request_id = message.request_id();
  TANDEM_ASSIGN_OR_RETURN(GenerateRequest request, generate_request_from(message));
  request.request_id = info_.request_id;
  request.client = info_.client;
  request.deadline = info_.deadline;

  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, state_.ready_engine());
  engine_ = engine;
  choices_ = request.n;
  summary_.reached_engine = true;
  if (request.logprobs || message.token_texts()) {
    token_text_ = [engine, model = request.model](Token id) {
      return engine->token_text(model, id);
    };
  }
  const RequestId id =
      engine->submit(std::move(request), std::make_shared<StreamSink>(shared_from_this()));
  bool cancel = false;
  {
    std::lock_guard lock(mutex_);
    id_ = id;
    cancel = cancel_wanted_;
    steer_locked();
  }
  if (cancel) engine->cancel(id);
  return absl::OkStatus();
}

void GenerateCall::on_started(const Started& event) {
  v1::GenerateResponse message;
  *message.mutable_started() = started_to_proto(event);
  std::lock_guard lock(mutex_);
  push_locked({std::move(message), -1, 64 + event.request_id.size()});
  pump_locked();
}

void GenerateCall::on_chunk(Chunk event) {
  const size_t bytes = weight(event);
  v1::GenerateResponse message;
  {
    std::lock_guard lock(mutex_);
    message.Swap(&spare_);
  }
  v1::Chunk* const made = message.mutable_chunk();
  made->Clear();
  made->set_index(event.index);
  made->set_text(std::move(event.text));
  for (const TokenInfo& token : event.tokens) {
    token_to_proto(token, token_text_, made->add_tokens());
  }

  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  if (!event.tokens.empty() && !first_token_seconds_.has_value()) {
    first_token_seconds_ = seconds(std::chrono::steady_clock::now() - info_.arrived);
  }
  if (Waiting* const waiting = joinable_locked(event.index, bytes)) {
    v1::Chunk* const last = waiting->message.mutable_chunk();
    last->mutable_text()->append(made->text());
    for (v1::Token& token : *made->mutable_tokens()) last->add_tokens()->Swap(&token);
    waiting->bytes += bytes;
    queued_bytes_ += bytes;
    queued_tokens_ += event.tokens.size();
  } else {
    push_locked({std::move(message), event.index, bytes});
  }
  pump_locked();
}

void GenerateCall::on_finished(const Finished& event) {
  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  v1::GenerateResponse message;
  *message.mutable_finished() = finished_to_proto(event, first_token_seconds_.value_or(0));
  push_locked({std::move(message), event.index, 0});
  summary_.add(event);
  summary_.first_token_seconds = first_token_seconds_.value_or(0);
  if (--choices_ == 0) end_locked(absl::OkStatus());
  pump_locked();
}

void GenerateCall::on_failed(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  end_locked(status.ok() ? absl::InternalError("failed with OK") : told_apart(status, info_));
  pump_locked();
}

void GenerateCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  in_flight_.Clear();
  if (!ok) {  // the client is gone; OnCancel follows, and the engine's last event ends the call
    queue_.clear();
    queued_bytes_ = queued_tokens_ = 0;
  }
  pump_locked();
}

void GenerateCall::OnCancel() {
  if (!deadline_at_hand(info_)) cancel_engine();
}

void GenerateCall::OnDone() {
  const std::shared_ptr<GenerateCall> last = std::move(self_);  // may destroy *this on return
}

void GenerateCall::cancel_engine() {
  std::optional<RequestId> id;
  {
    std::lock_guard lock(mutex_);
    cancel_wanted_ = true;
    id = id_;
  }
  if (id.has_value()) engine_->cancel(*id);
}

void GenerateCall::push_locked(Waiting waiting) {
  if (end_.has_value()) return;
  queued_bytes_ += waiting.bytes;
  queued_tokens_ += static_cast<size_t>(waiting.message.chunk().tokens_size());
  queue_.push_back(std::move(waiting));
}

// The last message of the choice, if it takes `bytes` more. Choices may overtake each other.
GenerateCall::Waiting* GenerateCall::joinable_locked(int choice, size_t bytes) {
  const auto last = std::find_if(queue_.rbegin(), queue_.rend(),
                                 [choice](const Waiting& w) { return w.choice == choice; });
  if (last == queue_.rend() || last->bytes + bytes > kMaxJoinedBytes) return nullptr;
  return &*last;
}

// Tells the engine to wait for the reader, or to go on.
void GenerateCall::steer_locked() {
  if (!id_.has_value() || end_.has_value()) return;
  const auto over = [&](int64_t part) {
    return static_cast<int64_t>(queued_bytes_) > state_.config.max_unread_bytes / part ||
           static_cast<int64_t>(queued_tokens_) > state_.config.max_unread_tokens / part;
  };
  if (!paused_ && over(1)) {
    paused_ = true;
    engine_->pause(*id_);
  } else if (paused_ && !over(2)) {
    paused_ = false;
    engine_->resume(*id_);
  }
}

void GenerateCall::end_locked(absl::Status status) {
  end_call(state_, info_, status, summary_);
  end_ = std::move(status);
}

// Starts the next operation if none is in flight: a write, or the end.
void GenerateCall::pump_locked() {
  if (writing_ || finish_sent_) return steer_locked();
  if (queue_.empty()) {
    if (!end_.has_value()) return;
    finish_sent_ = true;
    Finish(to_grpc(*end_, info_.request_id));
    return;
  }
  in_flight_ = to_buffer(queue_.front().message);
  queued_bytes_ -= queue_.front().bytes;
  queued_tokens_ -= static_cast<size_t>(queue_.front().message.chunk().tokens_size());
  if (queue_.front().message.chunk().tokens_size() <= kMaxSpareTokens) {
    spare_.Swap(&queue_.front().message);
  }
  queue_.pop_front();
  if (queue_.empty() && end_.has_value() && end_->ok()) {
    finish_sent_ = true;
    StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), grpc::Status::OK);
    return;
  }
  writing_ = true;
  StartWrite(&in_flight_);
  steer_locked();
}

}  // namespace tandem
