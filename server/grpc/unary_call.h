// A call with one answer.
//
// Owned by shared_ptr: gRPC holds the object through `self_` until OnDone, and whoever produces the
// answer (an engine thread, a text thread) holds it too, so neither can be left with a dead object.
// finish() may come from any thread, once; what comes later is ignored.
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
  // Produces the answer to a request, now or later; an error is the answer. Thread-safe.
  using Start = std::function<absl::Status(const std::shared_ptr<UnaryCall>& call,
                                           ServerState& state, const grpc::ByteBuffer& request)>;

  // For a call whose headers have come; reads its request and starts. `state` outlives it.
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

  CallInfo info;        // set before the answer's producer starts
  CallSummary summary;  // likewise

  // `stop` is called when the client goes away, at once if it already has. It must not block.
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
  // Fails, and stops what produces the answer.
  void give_up(const absl::Status& status) {
    const std::function<void()> stop = take_stop();
    fail(status);
    if (stop) stop();
  }

  // RESOURCE_EXHAUSTED where an answer of so many bytes is more than one may have.
  absl::Status check_size(size_t bytes) const {
    return check_answer_size(bytes, state_.config.max_send_bytes);
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
    request_.Clear();  // it holds the memory that its bytes were received in
    if (!status.ok()) fail(status);
  }

  // From here on what produces the answer is to stop: what is returned does that, if it is set.
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
  grpc::ByteBuffer request_;  // until it is read
  grpc::ByteBuffer response_;
  std::shared_ptr<UnaryCall> self_;
  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> stop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
