#include "server/generate_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/generation_service.h"
#include "server/grpc_status.h"
#include "server/raw_message.h"
#include "server/request_from_proto.h"

namespace tandem {
namespace {

// A joined message stays far below the 4 MiB that clients accept by default.
constexpr size_t kMaxJoinedBytes = 256 << 10;

// The completion that calls `Method` of `call`.
template <void (GenerateCall::*Method)(bool)>
CallThread::Completion completion(GenerateCall* call) {
  return {[](void* whom, bool ok) { (static_cast<GenerateCall*>(whom)->*Method)(ok); }, call};
}

// About what a chunk costs on the wire and in the queue.
size_t weight(const PendingChunk& chunk) { return 32 + chunk.bytes(); }

}  // namespace

// What the engine sees of the call.
class GenerateCall::StreamSink final : public Sink {
 public:
  explicit StreamSink(std::shared_ptr<GenerateCall> call) : call_(std::move(call)) {}
  void made(int64_t tokens) override { call_->on_made(tokens); }
  void started(const Started& event) override { call_->on_started(event); }
  void chunk(Chunk event) override { call_->on_chunk(std::move(event)); }
  void finished(const Finished& event) override { call_->on_finished(event); }
  void failed(const absl::Status& status) override { call_->on_failed(status); }

 private:
  const std::shared_ptr<GenerateCall> call_;
};

GenerateCall::GenerateCall(ServerState& state, GenerationService& service, CallThread& arrivals,
                           CallThread& streams)
    : state_(state),
      service_(service),
      arrivals_(arrivals),
      streams_(streams),
      arrived_(completion<&GenerateCall::arrived>(this)),
      written_(completion<&GenerateCall::written>(this)),
      finished_(completion<&GenerateCall::finished>(this)),
      over_(completion<&GenerateCall::over>(this)) {}

void GenerateCall::accept(ServerState& state, GenerationService& service, CallThread& arrivals,
                          CallThread& streams) {
  const std::shared_ptr<GenerateCall> call(new GenerateCall(state, service, arrivals, streams));
  call->self_ = call;
  arrivals.enter();
  call->context_.AsyncNotifyWhenDone(&call->over_);
  service.RequestGenerate(&call->context_, &call->request_, &call->writer_, streams.queue(),
                          arrivals.queue(), &call->arrived_);
}

// --- Thread for arrivals

void GenerateCall::arrived(bool ok) {
  CallThread& arrivals = arrivals_;
  if (ok) {
    const std::shared_ptr<GenerateCall> call = self_;  // may be over before this returns
    streams_.enter();
    accept(state_, service_, arrivals_, streams_);
    CallInfo info = begin_call("Generate", state_, context_);
    {
      const std::lock_guard lock(mutex_);
      info_ = std::move(info);
    }
    const absl::Status status = submit();
    if (!status.ok()) on_failed(status);
  } else {
    self_.reset();  // the server is closing; may destroy *this
  }
  arrivals.leave();
}

absl::Status GenerateCall::submit() {
  TANDEM_RETURN_IF_ERROR(info_.admitted);
  v1::GenerateRequest message;
  const absl::Status parsed = parse_message(request_, &message);
  request_.Clear();  // it holds the memory that its bytes were received in
  TANDEM_RETURN_IF_ERROR(parsed);
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
  with_tokens_ = wants_tokens(message);
  if (wants_token_texts(message)) {
    token_bytes_ = [engine, model = request.model](Token id) {
      return engine->token_bytes(model, id);
    };
  }
  const RequestId id =
      engine->submit(std::move(request), std::make_shared<StreamSink>(shared_from_this()));
  bool cancel = false;
  {
    const std::lock_guard lock(mutex_);
    id_ = id;
    cancel = cancel_wanted_;
    steer_locked();
  }
  if (cancel) engine->cancel(id);
  return absl::OkStatus();
}

// --- From the engine

// The loop waits for the lock only where there is something to be told.
void GenerateCall::on_made(int64_t tokens) {
  if (unread_tokens_.fetch_add(tokens) + tokens <= state_.config.max_unread_tokens) return;
  const std::lock_guard lock(mutex_);
  steer_locked();
}

void GenerateCall::on_started(const Started& event) {
  v1::GenerateResponse message;
  *message.mutable_started() = started_to_proto(event);
  const std::lock_guard lock(mutex_);
  push_event_locked(to_buffer(message), 64 + event.request_id.size());
}

void GenerateCall::on_chunk(Chunk event) {
  PendingChunk chunk(std::move(event), with_tokens_, token_bytes_);
  const size_t bytes = weight(chunk);
  const std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  if (chunk.tokens() > 0 && !first_token_seconds_.has_value()) {
    first_token_seconds_ = seconds(std::chrono::steady_clock::now() - info_.arrived);
  }
  if (chunk.empty()) {  // as part of a character, where only text is wanted
    unread_tokens_.fetch_sub(static_cast<int64_t>(chunk.tokens()));
    steer_locked();
    return;
  }
  // Joins the last one of its choice; choices may overtake each other.
  const auto last = std::find_if(queue_.rbegin(), queue_.rend(), [&](const Waiting& w) {
    return w.is_chunk && w.chunk.index() == chunk.index();
  });
  if (last != queue_.rend() && static_cast<size_t>(last->bytes) + bytes <= kMaxJoinedBytes) {
    last->chunk.append(chunk);
    last->bytes += static_cast<int64_t>(bytes);
    unread_bytes_ += static_cast<int64_t>(bytes);
    steer_locked();
    wake_locked();
    return;
  }
  Waiting waiting;
  waiting.is_chunk = true;
  waiting.chunk = std::move(chunk);
  waiting.bytes = static_cast<int64_t>(bytes);
  push_locked(std::move(waiting));
}

void GenerateCall::on_finished(const Finished& event) {
  const std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  v1::GenerateResponse message;
  *message.mutable_finished() = finished_to_proto(event, first_token_seconds_.value_or(0));
  summary_.add(event);
  summary_.first_token_seconds = first_token_seconds_.value_or(0);
  // The end goes with the last message.
  if (--choices_ == 0) end_locked(absl::OkStatus());
  push_event_locked(to_buffer(message), 0);
}

void GenerateCall::on_failed(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  end_locked(status.ok() ? absl::InternalError("failed with OK") : told_apart(status, info_));
  wake_locked();
}

void GenerateCall::push_event_locked(grpc::ByteBuffer event, size_t bytes) {
  Waiting waiting;
  waiting.event.Swap(&event);
  waiting.bytes = static_cast<int64_t>(bytes);
  push_locked(std::move(waiting));
}

void GenerateCall::push_locked(Waiting waiting) {
  unread_bytes_ += waiting.bytes;
  queue_.push_back(std::move(waiting));
  steer_locked();
  wake_locked();
}

void GenerateCall::end_locked(absl::Status status) {
  end_call(state_, info_, status, summary_);
  end_ = std::move(status);
}

void GenerateCall::wake_locked() {
  if (posted_ || writing_ || finish_sent_) return;
  posted_ = true;
  streams_.post(this);
}

// Tells the engine to wait for the reader, or to go on.
void GenerateCall::steer_locked() {
  if (!id_.has_value() || end_.has_value()) return;
  const auto over = [&](int64_t part) {
    return unread_bytes_ > state_.config.max_unread_bytes / part ||
           unread_tokens_.load() > state_.config.max_unread_tokens / part;
  };
  if (!paused_ && over(1)) {
    paused_ = true;
    engine_->pause(*id_);
  } else if (paused_ && !over(2)) {
    paused_ = false;
    engine_->resume(*id_);
  }
}

// --- Thread for streams

void GenerateCall::work() {
  Waiting next;
  bool last = false;   // nothing comes after `next`
  bool empty = false;  // there is no next
  absl::Status end;
  {
    const std::lock_guard lock(mutex_);
    posted_ = false;
    if (writing_ || finish_sent_) return;
    empty = queue_.empty();
    if (empty && !end_.has_value()) return;
    if (!empty) {
      next = std::move(queue_.front());
      queue_.erase(queue_.begin());
      unread_bytes_ -= next.bytes;
      unread_tokens_.fetch_sub(static_cast<int64_t>(next.chunk.tokens()));
    }
    last = !empty && queue_.empty() && end_.has_value() && end_->ok();
    if (end_.has_value()) end = *end_;
    finish_sent_ = empty || last;
    writing_ = !finish_sent_;
    steer_locked();
  }
  if (empty) return writer_.Finish(to_grpc(end, info_.request_id), &finished_);
  const auto write = [&](const grpc::ByteBuffer& message) {
    if (last) {
      writer_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, &finished_);
    } else {
      writer_.Write(message, &written_);
    }
  };
  next.is_chunk ? write(next.chunk.to_buffer()) : write(next.event);
}

void GenerateCall::written(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) {  // the client is gone; over() follows, and the engine's last event ends the call
      queue_.clear();
      unread_bytes_ = 0;
      unread_tokens_.store(0);
      steer_locked();
    }
    if (posted_ || (queue_.empty() && !end_.has_value())) return;
    posted_ = true;  // as work() comes now: posted besides, it might come once the call is over
  }
  work();
}

void GenerateCall::finished(bool) {
  is_finished_ = true;
  let_go();
}

void GenerateCall::over(bool) {
  is_over_ = true;
  std::optional<RequestId> id;
  if (context_.IsCancelled()) {
    const std::lock_guard lock(mutex_);
    cancel_wanted_ = !deadline_at_hand(info_);
    if (cancel_wanted_) id = id_;
  }
  if (id.has_value()) engine_->cancel(*id);
  let_go();
}

void GenerateCall::let_go() {
  if (!is_finished_ || !is_over_) return;
  CallThread& streams = streams_;
  self_.reset();  // may destroy *this
  streams.leave();
}

}  // namespace tandem
