// tandem.v1.Models: what is served.
#pragma once

#include "server/server_state.h"
#include "tandem/v1/models.grpc.pb.h"

namespace tandem {

class ModelsService final : public v1::Models::WithRawCallbackMethod_ListModels<
                                v1::Models::WithRawCallbackMethod_GetModel<v1::Models::Service>> {
 public:
  // `state` outlives the service.
  explicit ModelsService(ServerState& state) : state_(state) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  ServerState& state_;
};

}  // namespace tandem
