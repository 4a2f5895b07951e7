#include "server/models_service.h"

#include "engine/base/status.h"
#include "engine/base/version.h"
#include "server/request_from_proto.h"
#include "server/response_to_proto.h"
#include "server/unary_call.h"

namespace tandem {
namespace {

// Descriptions stay readable while the server drains: clients still hold streams to explain.
absl::StatusOr<const Engine*> loaded_engine(const ServerState& state) {
  const Engine* const engine = state.engine.load();
  if (engine == nullptr) return absl::UnavailableError("not ready: models are loading");
  return engine;
}

absl::StatusOr<v1::ListModelsResponse> list_models(UnaryCall& call, const ServerState& state,
                                                   const grpc::ByteBuffer& bytes) {
  TANDEM_RETURN_IF_ERROR(call.info.admitted);
  v1::ListModelsRequest request;
  TANDEM_RETURN_IF_ERROR(parse_message(bytes, &request));
  TANDEM_ASSIGN_OR_RETURN(const Engine* const engine, loaded_engine(state));
  v1::ListModelsResponse answer;
  answer.set_server_version(kVersion);
  for (const DeploymentInfo& deployment : engine->deployments()) {
    *answer.add_models() = model_to_proto(deployment);
  }
  return answer;
}

absl::StatusOr<v1::Model> get_model(UnaryCall& call, const ServerState& state,
                                    const grpc::ByteBuffer& bytes) {
  TANDEM_RETURN_IF_ERROR(call.info.admitted);
  v1::GetModelRequest request;
  TANDEM_RETURN_IF_ERROR(parse_message(bytes, &request));
  call.summary.model = request.model();
  TANDEM_RETURN_IF_ERROR(check_model_name(request.model()));
  TANDEM_ASSIGN_OR_RETURN(const Engine* const engine, loaded_engine(state));
  TANDEM_ASSIGN_OR_RETURN(const DeploymentInfo deployment, engine->deployment(request.model()));
  return model_to_proto(deployment);
}

template <class Answer>
grpc::ServerUnaryReactor* end(UnaryCall* call, const absl::StatusOr<Answer>& answer) {
  if (answer.ok()) {
    call->finish(absl::OkStatus(), *answer);
  } else {
    call->fail(answer.status());
  }
  return call;
}

}  // namespace

grpc::ServerUnaryReactor* ModelsService::ListModels(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  const auto call = UnaryCall::create("ListModels", state_, context, response);
  return end(call.get(), list_models(*call, state_, *request));
}

grpc::ServerUnaryReactor* ModelsService::GetModel(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  const auto call = UnaryCall::create("GetModel", state_, context, response);
  return end(call.get(), get_model(*call, state_, *request));
}

}  // namespace tandem
