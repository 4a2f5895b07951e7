// tandem.v1.Generation: reads requests, hands them to the engine, writes answers. Generate is
// served on threads of its own (call_thread.h), the rest by gRPC's callbacks.
#pragma once

#include <grpcpp/support/async_stream.h>

#include "server/call_thread.h"
#include "server/raw_service.h"
#include "server/server_state.h"

namespace tandem {

class GenerationService final : public RawService {
 public:
  // `state` outlives the service.
  explicit GenerationService(ServerState& state);

  // Begins to take calls of Generate. The server has been started; the threads outlive it.
  void serve_streams(CallThread& arrivals, CallThread& streams);

  // A call of Generate has come.
  void arrived(grpc::ServerContext* context) { heard(context); }

  // Has `tag` come to `arrivals` when there is a call of Generate.
  void await_generate(grpc::ServerContext* context,
                      grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>* stream,
                      grpc::CompletionQueue* streams, grpc::ServerCompletionQueue* arrivals,
                      void* tag) {
    RequestAsyncBidiStreaming(generate_, context, stream, streams, arrivals, tag);
  }

 private:
  ServerState& state_;
  int generate_ = 0;  // number of the method
};

}  // namespace tandem
