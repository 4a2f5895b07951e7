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
#include <utility>

namespace tandem {

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class RawService : public grpc::Service {
 protected:
  // `path`: "/package.Service/Method", a literal. `begin` is called for each call.
  void add_method(const char* path,
                  std::function<RawReactor*(grpc::CallbackServerContext*)> begin) {
    const int index = add(path);
    using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
    MarkMethodRawCallback(index, new Handler(std::move(begin)));
  }
  // Likewise, served on completion queues: its number, for RequestAsyncBidiStreaming.
  int add_async_method(const char* path) {
    const int index = add(path);
    MarkMethodRaw(index);
    return index;
  }

 private:
  int add(const char* path) {
    AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   nullptr));
    return methods_++;
  }
  int methods_ = 0;
};

}  // namespace tandem
