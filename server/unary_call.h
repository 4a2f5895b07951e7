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
#include <mutex>
#include <string>
#include <utility>

#include "server/call_info.h"
#include "server/grpc_status.h"
#include "server/raw_message.h"
#include "server/raw_service.h"

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
      std::lock_guard lock(mutex_);
      if (!cancelled_) {
        if (!finished_) stop_ = std::move(stop);
        return;
      }
    }
    stop();
  }

  template <class Message>
  void finish(const absl::Status& status, const Message& message) {
    grpc::ByteBuffer bytes;
    if (status.ok()) bytes = to_buffer(message);
    {
      std::lock_guard lock(mutex_);
      if (finished_) return;
      finished_ = true;
      stop_ = nullptr;
      response_.Swap(&bytes);
    }
    end_call(state_, info, status, summary);
    if (status.ok()) {
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      Finish(to_grpc(status, info.request_id));
    }
  }
  void fail(const absl::Status& status) { finish(status, v1::Started()); }

 private:
  UnaryCall(const char* method, ServerState& state, const grpc::CallbackServerContext& context,
            Start start)
      : info(begin_call(method, state, context)), state_(state), start_(std::move(start)) {}

  void OnReadDone(bool ok) override {
    const std::shared_ptr<UnaryCall> call = self_;
    if (!ok) return fail(told_apart(no_request(), info));
    const absl::Status status = start_(call, state_, request_);
    request_.Clear();  // it holds the memory that its bytes were received in
    if (!status.ok()) fail(status);
  }

  void OnCancel() override {
    std::function<void()> stop;
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      stop = std::move(stop_);
      stop_ = nullptr;
    }
    if (stop && !deadline_at_hand(info)) stop();
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
  std::mutex mutex_;
  bool finished_ = false;       // guarded by mutex_
  bool cancelled_ = false;      // guarded by mutex_
  std::function<void()> stop_;  // guarded by mutex_
};

}  // namespace tandem
