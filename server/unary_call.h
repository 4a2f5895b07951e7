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

namespace tandem {

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<UnaryCall> create(const char* method, ServerState& state,
                                           grpc::CallbackServerContext* context,
                                           grpc::ByteBuffer* response) {
    auto call = std::shared_ptr<UnaryCall>(new UnaryCall(method, state, context, response));
    call->self_ = call;
    return call;
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
      if (status.ok()) response_->Swap(&bytes);
    }
    end_call(state_, info, status, summary);
    Finish(to_grpc(status, info.request_id));
  }
  void fail(const absl::Status& status) { finish(status, v1::Started()); }

 private:
  UnaryCall(const char* method, ServerState& state, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response)
      : info(begin_call(method, state, *context)), state_(state), response_(response) {}

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
  }

  ServerState& state_;
  grpc::ByteBuffer* const response_;  // gRPC's, until finish()
  std::shared_ptr<UnaryCall> self_;
  std::mutex mutex_;
  bool finished_ = false;       // guarded by mutex_
  bool cancelled_ = false;      // guarded by mutex_
  std::function<void()> stop_;  // guarded by mutex_
};

}  // namespace tandem
