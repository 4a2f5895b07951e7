#include "server/grpc/models_service.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/version.h"
#include "server/grpc/request_from_proto.h"
#include "server/grpc/response_to_proto.h"
#include "server/grpc/unary_call.h"

namespace tandem {
namespace {

constexpr int kMaxPage = 1000;

// Descriptions stay available during a drain, for clients with open streams.
absl::StatusOr<const Engine*> loaded_engine(const ServerState& state) {
  const Engine* const engine = state.engine.load();
  if (engine == nullptr) return not_ready();
  return engine;
}

// A page token is the name of the next page's first model, so it is valid for any page size.
absl::StatusOr<v1::ListModelsResponse> page_of(const std::vector<DeploymentInfo>& all,
                                               const v1::ListModelsRequest& request) {
  if (request.page_size() < 0) return out_of_range("page_size", request.page_size(), "at least 0");
  const int size = request.page_size() == 0 ? kMaxPage : std::min(request.page_size(), kMaxPage);
  auto next = all.begin();
  if (!request.page_token().empty()) {
    next = std::find_if(all.begin(), all.end(), [&](const DeploymentInfo& deployment) {
      return deployment.name == request.page_token();
    });
    if (next == all.end()) {
      return out_of_range("page_token", quote_value(request.page_token()),
                          "next_page_token of the previous response");
    }
  }
  v1::ListModelsResponse answer;
  answer.set_server_version(kVersion);
  for (; next != all.end() && answer.models_size() < size; ++next) {
    *answer.add_models() = model_to_proto(*next);
  }
  if (next != all.end()) answer.set_next_page_token(next->name);
  return answer;
}

absl::StatusOr<v1::ListModelsResponse> list_models(UnaryCall& call, const ServerState& state,
                                                   const grpc::ByteBuffer& bytes) {
  v1::ListModelsRequest request;
  TANDEM_RETURN_IF_ERROR(call.parse(bytes, &request));
  TANDEM_ASSIGN_OR_RETURN(const Engine* const engine, loaded_engine(state));
  return page_of(engine->deployments(), request);
}

absl::StatusOr<v1::Model> get_model(UnaryCall& call, const ServerState& state,
                                    const grpc::ByteBuffer& bytes) {
  v1::GetModelRequest request;
  TANDEM_RETURN_IF_ERROR(call.parse(bytes, &request));
  call.summary.model = request.model();
  TANDEM_RETURN_IF_ERROR(check_model_name(request.model()));
  TANDEM_ASSIGN_OR_RETURN(const Engine* const engine, loaded_engine(state));
  TANDEM_ASSIGN_OR_RETURN(const DeploymentInfo deployment, engine->deployment(request.model()));
  return model_to_proto(deployment);
}

template <class Answer>
absl::Status end(UnaryCall& call, const absl::StatusOr<Answer>& answer) {
  if (answer.ok()) call.finish(*answer);
  return answer.status();
}

}  // namespace

ModelsService::ModelsService(ServerState& state) {
  add_method("/tandem.v1.Models/ListModels", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin("ListModels", state, context,
                            [](const auto& call, ServerState& s, const grpc::ByteBuffer& request) {
                              return end(*call, list_models(*call, s, request));
                            });
  });
  add_method("/tandem.v1.Models/GetModel", [&state](grpc::CallbackServerContext* context) {
    return UnaryCall::begin("GetModel", state, context,
                            [](const auto& call, ServerState& s, const grpc::ByteBuffer& request) {
                              return end(*call, get_model(*call, s, request));
                            });
  });
}

}  // namespace tandem
