#include "server/grpc/admin_service.h"

#include <memory>

#include "server/adapter_commands.h"
#include "server/deployment_commands.h"
#include "server/grpc/unary_call.h"

namespace tandem {
namespace {

// Parses the request, carries it out, and ends the call with `Response`.
template <class Request, class Response>
UnaryCall::Start command(absl::Status (*run)(ServerState&, const CallInfo&, const Request&,
                                             AdapterDone)) {
  return [run](const std::shared_ptr<UnaryCall>& call, ServerState& state,
               const grpc::ByteBuffer& bytes) -> absl::Status {
    Request request;
    TANDEM_RETURN_IF_ERROR(call->parse(bytes, &request));
    call->summary.model = request.model();
    call->summary.adapter = request.adapter();
    return run(state, call->info, request, [call](const absl::Status& status) {
      if (!status.ok()) return call->fail(status);
      call->finish(Response());
    });
  };
}

// The same for deployments.
template <class Request, class Response>
UnaryCall::Start deployment_command(absl::Status (*run)(ServerState&, const CallInfo&,
                                                        const Request&, DeploymentDone<Response>)) {
  return [run](const std::shared_ptr<UnaryCall>& call, ServerState& state,
               const grpc::ByteBuffer& bytes) -> absl::Status {
    Request request;
    TANDEM_RETURN_IF_ERROR(call->parse(bytes, &request));
    if constexpr (requires { request.model(); }) call->summary.model = request.model();
    return run(state, call->info, request, [call](const absl::StatusOr<Response>& response) {
      if (!response.ok()) return call->fail(response.status());
      call->finish(*response);
    });
  };
}

}  // namespace

AdminService::AdminService(ServerState& state) {
  add_method("/tandem.v1.Admin/LoadAdapter", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin(
        "LoadAdapter", state, context,
        command<v1::LoadAdapterRequest, v1::LoadAdapterResponse>(&load_adapter));
  });
  add_method("/tandem.v1.Admin/UnloadAdapter", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin(
        "UnloadAdapter", state, context,
        command<v1::UnloadAdapterRequest, v1::UnloadAdapterResponse>(&unload_adapter));
  });
  add_method("/tandem.v1.Admin/LoadDeployment", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin("LoadDeployment", state, context, deployment_command(&load_deployment));
  });
  add_method("/tandem.v1.Admin/ReplaceDeployment", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin("ReplaceDeployment", state, context,
                            deployment_command(&replace_deployment));
  });
  add_method("/tandem.v1.Admin/UnloadDeployment", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin("UnloadDeployment", state, context,
                            deployment_command(&unload_deployment));
  });
  add_method("/tandem.v1.Admin/ListDeployments", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin("ListDeployments", state, context,
                            deployment_command(&list_deployments));
  });
}

}  // namespace tandem
