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
#include "engine/base/mutex.h"
#include "engine/base/status.h"
#include "server/grpc/call_info.h"
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
    const absl::Status entered = state.calls.enter(call->info.peer);
    call->entered_ = entered.ok();
    if (entered.ok()) {
      call->StartRead(&call->request_);
    } else {
      call->fail(entered);
    }
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

  template <class Message>
  void finish(const Message& message) {
    const grpc::ByteBuffer answer = to_buffer(message);
    end(check_size(answer.Length()), answer);
  }
  void fail(const absl::Status& status) { end(status, {}); }
  // Fails and stops the producer.
  void abort(const absl::Status& status) {
    const std::function<void()> stop = take_stop();
    fail(status);
    if (stop) stop();
  }

  // RESOURCE_EXHAUSTED if a response of this size exceeds the limit.
  absl::Status check_size(size_t bytes) const {
    return check_response_size(bytes, state_.config.max_send_bytes);
  }

 private:
  UnaryCall(const char* method, ServerState& state, const grpc::CallbackServerContext& context,
            Start start)
      : info(begin_call(method, state, context)), state_(state), start_(std::move(start)) {}

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
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      Finish(to_grpc(status, info.request_id));
    }
  }

  void OnReadDone(bool ok) override {
    const std::shared_ptr<UnaryCall> call = self_;
    if (!ok) return fail(classify_cancellation(no_request(), info));
    const absl::Status status = start_(call, state_, request_);
    request_.Clear();  // frees the receive buffer
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
    if (entered_) state_.calls.leave(info.peer);
  }

  ServerState& state_;
  const Start start_;
  bool entered_ = false;
  grpc::ByteBuffer request_;  // until it is parsed
  grpc::ByteBuffer response_;
  std::shared_ptr<UnaryCall> self_;
  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> stop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
