// A gRPC service whose methods are written by hand: raw bytes in and out, and called as soon as a
// call's headers are there.
//
// Services that are made from a .proto hear of a call with one request only when that is there in
// full. A client that sends headers and nothing else would have calls that nobody counts, ends or
// knows of. On the wire nothing differs.
#pragma once

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/call_gate.h"

namespace tandem {

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService : public grpc::Service {
 public:
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
  // Likewise, served on completion queues: its number, for RequestAsyncBidiStreaming. Whoever takes
  // its calls says so by heard().
  int add_async_method(const char* path) {
    const int index = add(path);
    MarkMethodRaw(index);
    return index;
  }
  void heard(grpc::ServerContextBase* context) {
    if (gate_ != nullptr) gate_->heard(context);
  }

 private:
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
