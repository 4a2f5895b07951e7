// tandem.v1.Generation: reads requests, hands them to the engine, writes answers.
#pragma once

#include "server/server_state.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem {

class GenerationService final : public v1::Generation::WithRawCallbackMethod_Generate<
                                    v1::Generation::WithRawCallbackMethod_Complete<
                                        v1::Generation::WithRawCallbackMethod_Score<
                                            v1::Generation::WithRawCallbackMethod_Tokenize<
                                                v1::Generation::WithRawCallbackMethod_Detokenize<
                                                    v1::Generation::Service>>>>> {
 public:
  // `state` outlives the service.
  explicit GenerationService(ServerState& state) : state_(state) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
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
