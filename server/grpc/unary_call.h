// A call with one response.
//
// Shared ownership: gRPC holds the object through `self_` until OnDone(), and the producer of the
// response (an engine thread, a text thread) holds it too. finish(), fail() and abort() may be
// called on any thread; the first one counts.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/memory_account.h"
#include "engine/base/mutex.h"
#include "engine/base/status.h"
#include "server/edge/timeouts.h"
#include "server/grpc/call_info.h"
#include "server/grpc/call_memory.h"
#include "server/grpc/call_timeout.h"
#include "server/grpc/complete_response.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/raw_message.h"
#include "server/grpc/raw_service.h"

namespace tandem {

class UnaryCall final : public RawReactor {
 public:
  // Starts to produce the response. An error is the response. Thread-safe.
  using Start = std::function<absl::Status(const std::shared_ptr<UnaryCall>& call,
                                           ServerState& state, const grpc::ByteBuffer& request)>;

  // Begins a call whose headers have arrived: reads the request and calls `start`. `state` outlives
  // the call.
  static UnaryCall* begin(const char* method, ServerState& state,
                          grpc::CallbackServerContext* context, Start start) {
    const std::shared_ptr<UnaryCall> call(new UnaryCall(method, state, *context, std::move(start)));
    call->self_ = call;
    const absl::Status admitted = call->admit();
    if (!admitted.ok()) {
      call->fail(admitted);
      return call.get();
    }
    cancel_after(kRequestTime, context, &state.timeouts, &call->request_timeout_);
    call->StartRead(&call->request_);
    return call.get();
  }

  // Set before the producer starts:
  CallInfo info;
  CallSummary summary;

  // `stop` is called when the client disconnects, at once if it already has. It must not block.
  void on_cancel(std::function<void()> stop) {
    {
      const MutexLock lock(&mutex_);
      if (!cancelled_) {
        if (!finished_) stop_ = std::move(stop);
        return;
      }
    }
    stop();
  }

  // Parses the request and charges its memory. Call in `start` only.
  template <class Message>
  absl::Status parse(const grpc::ByteBuffer& request, Message* out) {
    return parse_message(request, out, &request_memory_);
  }

  // Charges the memory of an answer that is being made, given its size on the wire so far.
  // RESOURCE_EXHAUSTED: it exceeds the limit of an answer, or that of memory. Not thread-safe.
  absl::Status hold_answer(size_t wire_bytes) {
    TANDEM_RETURN_IF_ERROR(check_response_size(wire_bytes, state_.config.max_send_bytes));
    // In steps, because the account is shared.
    const int64_t bytes = kAnswerFactor * static_cast<int64_t>(wire_bytes);
    if (bytes / kAnswerStep == answer_memory_.bytes() / kAnswerStep) return absl::OkStatus();
    return answer_memory_.try_resize(bytes);
  }

  template <class Message>
  void finish(const Message& message) {
    const size_t bytes = message.ByteSizeLong();
    if (const absl::Status held = hold_answer(bytes); !held.ok()) return fail(held);
    const grpc::ByteBuffer answer = to_buffer(message);
    answer_memory_.resize(static_cast<int64_t>(bytes));  // the message ends soon, the buffer later
    end(absl::OkStatus(), answer);
  }
  void fail(const absl::Status& status) { end(status, {}); }
  // Fails and stops the producer.
  void abort(const absl::Status& status) {
    const std::function<void()> stop = take_stop();
    fail(status);
    if (stop) stop();
  }

 private:
  static constexpr int64_t kAnswerStep = 4 << 10;

  UnaryCall(const char* method, ServerState& state, grpc::CallbackServerContext& context,
            Start start)
      : info(begin_call(method, state, context)),
        state_(state),
        context_(context),
        start_(std::move(start)) {}

  // Everything that is checked before the client's message is read.
  absl::Status admit() {
    const absl::Status entered = state_.calls.enter(info.peer);
    entered_ = entered.ok();
    TANDEM_RETURN_IF_ERROR(entered);
    TANDEM_RETURN_IF_ERROR(info.authenticated);
    TANDEM_ASSIGN_OR_RETURN(request_memory_, charge_call(state_, info, kCallBytes));
    TANDEM_ASSIGN_OR_RETURN(answer_memory_, charge_call(state_, info, 0));
    return absl::OkStatus();
  }

  void end(const absl::Status& status, const grpc::ByteBuffer& answer) {
    {
      const MutexLock lock(&mutex_);
      if (finished_) return;
      finished_ = true;
      stop_ = nullptr;
      if (status.ok()) response_ = answer;  // shares the bytes
    }
    end_call(state_, info, status, summary);
    if (status.ok()) {
      const auto bytes = static_cast<int64_t>(answer.Length());
      cancel_after(answer_time(state_.config.stalled_stream, bytes), &context_, &state_.timeouts,
                   &answer_timeout_);
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      add_retry_pushback(status, &context_);
      Finish(to_grpc(status, info.request_id));
    }
  }

  void OnReadDone(bool ok) override {
    const std::shared_ptr<UnaryCall> call = self_;
    request_timeout_.stop();
    if (!ok) return fail(classify_cancellation(no_request(), info));
    has_request_ = true;
    const absl::Status status = start_(call, state_, request_);
    request_.Clear();  // frees the receive buffer
    {
      const MutexLock lock(&mutex_);
      if (!over_) request_memory_.resize(kCallBytes);
    }
    if (!status.ok()) fail(status);
  }

  // Marks the call cancelled. Returns the function that stops the producer, or null.
  std::function<void()> take_stop() {
    const MutexLock lock(&mutex_);
    cancelled_ = true;
    return std::exchange(stop_, nullptr);
  }

  void OnCancel() override {
    const std::function<void()> stop = take_stop();
    if (stop && !deadline_imminent(info)) stop();
  }

  void OnDone() override {
    const std::shared_ptr<UnaryCall> last = std::move(self_);  // may destroy *this on return
    request_timeout_.stop();
    answer_timeout_.stop();
    bool cancelled = false;
    {
      const MutexLock lock(&mutex_);
      over_ = true;
      cancelled = cancelled_;
      request_memory_.release();
    }
    answer_memory_.release();
    if (entered_) state_.calls.leave(info.peer, cancelled && is_abandoned(info, has_request_));
  }

  ServerState& state_;
  grpc::CallbackServerContext& context_;  // until OnDone()
  const Start start_;
  bool entered_ = false;
  bool has_request_ = false;
  grpc::ByteBuffer request_;  // until it is parsed
  grpc::ByteBuffer response_;
  std::shared_ptr<UnaryCall> self_;
  Timeouts::Timeout request_timeout_, answer_timeout_;
  MemoryAccount::Charge request_memory_;  // of the call and its request
  MemoryAccount::Charge answer_memory_;   // of the producer until finish(), then until OnDone()
  Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // after OnDone()
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> stop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
