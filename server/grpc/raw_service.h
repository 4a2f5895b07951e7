// A gRPC service with hand-written methods: raw bytes in and out, called as soon as a call's
// headers arrive.
//
// Services generated from a .proto see a call with one request only once the whole request is
// there. Calls of a client that sends headers and nothing else would never be counted or ended. The
// wire format is the same.
#pragma once

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/grpc/call_limiter.h"
#include "server/grpc/call_thread.h"

namespace tandem {

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService : public grpc::Service {
 public:
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  // The arrival of a call on a completion queue. The limiter is notified before `then` is called.
  class Arrival {
   public:
    // Lives until `then`, which may destroy it.
    explicit Arrival(CallThread::Completion then)
        : then_(then),
          arrived_{[](void* self, bool ok) { static_cast<Arrival*>(self)->arrive(ok); }, this} {}
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;

   private:
    friend class RawService;
    void arrive(bool ok) {
      if (ok) service_->received(context_);
      then_.then(then_.whom, ok);
    }

    const CallThread::Completion then_;
    CallThread::Completion arrived_;
    RawService* service_ = nullptr;
    grpc::ServerContext* context_ = nullptr;
  };

  // A method that is served on completion queues. Copies refer to the service, which outlives them.
  class AsyncMethod {
   public:
    AsyncMethod() = default;
    // Waits for the next call: it arrives on `arrivals`, and its operations complete on `streams`.
    // Everything outlives the call, and `arrival` its own arrival.
    void await(Arrival* arrival, grpc::ServerContext* context, Stream* stream,
               const CallThread& streams, const CallThread& arrivals) const {
      arrival->service_ = service_;
      arrival->context_ = context;
      service_->RequestAsyncBidiStreaming(index_, context, stream, streams.queue(),
                                          arrivals.queue(), &arrival->arrived_);
    }

   private:
    friend class RawService;
    AsyncMethod(RawService* service, int index) : service_(service), index_(index) {}
    RawService* service_ = nullptr;
    int index_ = 0;
  };

  // `limiter` admits this service's calls and is notified of each. REQUIRES: the server has not
  // started. `limiter` outlives the service.
  void set_limiter(CallLimiter* limiter) {
    limiter_ = limiter;
    for (const std::string& path : paths_) limiter->add_method(path);
  }

 protected:
  // `path`: "/package.Service/Method", a literal. `begin` is called for each call.
  void add_method(const char* path,
                  std::function<RawReactor*(grpc::CallbackServerContext*)> begin) {
    const int index = add(path);
    using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
    const auto enter = [this, begin = std::move(begin)](grpc::CallbackServerContext* context) {
      received(context);
      return begin(context);
    };
    MarkMethodRawCallback(index, new Handler(enter));
  }
  // The same for a method that is served on completion queues.
  AsyncMethod add_async_method(const char* path) {
    const int index = add(path);
    MarkMethodRaw(index);
    return {this, index};
  }

 private:
  // Methods added through gRPC's own functions would bypass the limiter.
  using grpc::Service::AddMethod;
  using grpc::Service::RequestAsyncBidiStreaming;
  using grpc::Service::RequestAsyncClientStreaming;
  using grpc::Service::RequestAsyncServerStreaming;
  using grpc::Service::RequestAsyncUnary;

  void received(grpc::ServerContextBase* context) {
    if (limiter_ != nullptr) limiter_->received(context);
  }
  int add(const char* path) {
    paths_.emplace_back(path);
    AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    return static_cast<int>(paths_.size()) - 1;
  }
  std::vector<std::string> paths_;
  CallLimiter* limiter_ = nullptr;
};

}  // namespace tandem
