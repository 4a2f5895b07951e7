// tandem.v1.Generation: reads requests, hands them to the engine, writes answers. Generate is
// served on threads of its own (call_thread.h), the rest by gRPC's callbacks.
#pragma once

#include "server/call_thread.h"
#include "server/server_state.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem {

class GenerationService final
    : public v1::Generation::WithRawMethod_Generate<v1::Generation::WithRawCallbackMethod_Complete<
          v1::Generation::WithRawCallbackMethod_Score<
              v1::Generation::WithRawCallbackMethod_Tokenize<
                  v1::Generation::WithRawCallbackMethod_Detokenize<v1::Generation::Service>>>>> {
 public:
  // `state` outlives the service.
  explicit GenerationService(ServerState& state) : state_(state) {}

  // Begins to take calls of Generate. The server has been started; both threads outlive it.
  void serve_streams(CallThread& arrivals, CallThread& streams);

  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  ServerState& state_;
};

}  // namespace tandem
