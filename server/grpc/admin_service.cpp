#include "server/grpc/admin_service.h"

#include <memory>

#include "server/adapter_commands.h"
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
}

}  // namespace tandem
