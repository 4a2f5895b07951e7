// A gRPC service whose methods are written by hand: raw bytes in and out, and called as soon as a
// call's headers are there.
//
// Services that are made from a .proto hear of a call with one request only when that is there in
// full. A client that sends headers and nothing else would have calls that nobody counts, ends or
// knows of. On the wire nothing differs.
#pragma once

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/call_gate.h"
#include "server/call_thread.h"

namespace tandem {

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService : public grpc::Service {
 public:
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  // A call that is waited for on a completion queue. The gate hears of it before `then` is called.
  class Arrival {
   public:
    // Lives until `then`, which may destroy it.
    explicit Arrival(CallThread::Completion then)
        : then_(then),
          come_{[](void* self, bool ok) { static_cast<Arrival*>(self)->come(ok); }, this} {}
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;

   private:
    friend class RawService;
    void come(bool ok) {
      if (ok) service_->heard(context_);
      then_.then(then_.whom, ok);
    }

    const CallThread::Completion then_;
    CallThread::Completion come_;
    RawService* service_ = nullptr;
    grpc::ServerContext* context_ = nullptr;
  };

  // `gate` lets this service's calls in, and hears of each. Before the server starts; outlives it.
  void enter_through(CallGate* gate) {
    gate_ = gate;
    for (const std::string& path : paths_) gate->serve(path);
  }

 protected:
  // `path`: "/package.Service/Method", a literal. `begin` is called for each call.
  void add_method(const char* path,
                  std::function<RawReactor*(grpc::CallbackServerContext*)> begin) {
    const int index = add(path);
    using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
    const auto enter = [this, begin = std::move(begin)](grpc::CallbackServerContext* context) {
      heard(context);
      return begin(context);
    };
    MarkMethodRawCallback(index, new Handler(enter));
  }
  // Likewise, served on completion queues: its number, for await().
  int add_async_method(const char* path) {
    const int index = add(path);
    MarkMethodRaw(index);
    return index;
  }
  // Waits for the next call of a method: it comes to `arrivals`, what is done with it to `streams`.
  // All of it outlives the call, `arrival` its coming.
  void await(int method, Arrival* arrival, grpc::ServerContext* context, Stream* stream,
             const CallThread& streams, const CallThread& arrivals) {
    arrival->service_ = this;
    arrival->context_ = context;
    RequestAsyncBidiStreaming(method, context, stream, streams.queue(), arrivals.queue(),
                              &arrival->come_);
  }

 private:
  // What gRPC has besides: the gate would not know of such methods, and hear of none of their
  // calls.
  using grpc::Service::AddMethod;
  using grpc::Service::RequestAsyncBidiStreaming;
  using grpc::Service::RequestAsyncClientStreaming;
  using grpc::Service::RequestAsyncServerStreaming;
  using grpc::Service::RequestAsyncUnary;

  void heard(grpc::ServerContextBase* context) {
    if (gate_ != nullptr) gate_->heard(context);
  }
  int add(const char* path) {
    paths_.emplace_back(path);
    AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    return static_cast<int>(paths_.size()) - 1;
  }
  std::vector<std::string> paths_;
  CallGate* gate_ = nullptr;
};

}  // namespace tandem
