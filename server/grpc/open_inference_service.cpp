#include "server/grpc/open_inference_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/version.h"
#include "inference/open_inference.pb.h"
#include "server/grpc/raw_message.h"
#include "server/grpc/request_from_proto.h"
#include "server/grpc/unary_call.h"

namespace tandem {
namespace {

// A name, a version, and their tags and lengths.
constexpr size_t kMostRequestBytes = 512;

absl::Status check_version(const std::string& version) {
  if (version.empty()) return absl::OkStatus();
  return out_of_range("version", quote_value(version), "empty: models have no versions");
}

absl::StatusOr<inference::ServerLiveResponse> server_live(const ServerState& /*state*/,
                                                          const inference::ServerLiveRequest&) {
  inference::ServerLiveResponse answer;
  answer.set_live(true);
  return answer;
}

absl::StatusOr<inference::ServerReadyResponse> server_ready(const ServerState& state,
                                                            const inference::ServerReadyRequest&) {
  inference::ServerReadyResponse answer;
  answer.set_ready(state.ready());
  return answer;
}

// The error does not list the models: the call needs no credentials.
absl::StatusOr<inference::ModelReadyResponse> model_ready(
    const ServerState& state, const inference::ModelReadyRequest& request) {
  TANDEM_RETURN_IF_ERROR(check_version(request.version()));
  inference::ModelReadyResponse answer;
  if (state.engine.load() == nullptr) return answer;  // models are loading
  const auto services = state.services();
  const auto found = services.find(absl::StrCat("tandem.v1.Generation/", request.name()));
  if (found == services.end()) {
    return absl::NotFoundError("name: unknown; allowed: the name of a model");
  }
  answer.set_ready(found->second);
  return answer;
}

absl::StatusOr<inference::ServerMetadataResponse> server_metadata(UnaryCall& call,
                                                                  const ServerState& /*state*/,
                                                                  const grpc::ByteBuffer& bytes) {
  inference::ServerMetadataRequest request;
  TANDEM_RETURN_IF_ERROR(call.parse(bytes, &request));
  inference::ServerMetadataResponse answer;
  answer.set_name("tandem");
  answer.set_version(kVersion);
  return answer;
}

absl::StatusOr<inference::ModelMetadataResponse> model_metadata(UnaryCall& call,
                                                                const ServerState& state,
                                                                const grpc::ByteBuffer& bytes) {
  inference::ModelMetadataRequest request;
  TANDEM_RETURN_IF_ERROR(call.parse(bytes, &request));
  call.summary.model = request.name();
  TANDEM_RETURN_IF_ERROR(check_model_name(request.name()));
  TANDEM_RETURN_IF_ERROR(check_version(request.version()));
  TANDEM_ASSIGN_OR_RETURN(const Engine* const engine, state.ready_engine());
  TANDEM_ASSIGN_OR_RETURN(const DeploymentInfo deployment, engine->deployment(request.name()));
  inference::ModelMetadataResponse answer;
  answer.set_name(deployment.name);
  answer.set_platform("tandem");
  return answer;
}

// The handler of a method that needs no credentials.
template <class Request, class Answer>
auto open_method(ServerState& state,
                 absl::StatusOr<Answer> (*answer)(const ServerState&, const Request&)) {
  return [&state, answer](grpc::CallbackServerContext* context) {
    const HealthMethod method = {&state.health_calls, &state.timeouts, kMostRequestBytes,
                                 "request"};
    return answer_health_call(
        method, context,
        [&state, answer](const grpc::ByteBuffer& bytes) -> absl::StatusOr<grpc::ByteBuffer> {
          Request request;
          TANDEM_RETURN_IF_ERROR(parse_message(bytes, &request));
          TANDEM_ASSIGN_OR_RETURN(const Answer made, answer(state, request));
          return to_buffer(made);
        });
  };
}

template <class Answer>
auto closed_method(const char* name, ServerState& state,
                   absl::StatusOr<Answer> (*make)(UnaryCall&, const ServerState&,
                                                  const grpc::ByteBuffer&)) {
  return [name, &state, make](grpc::CallbackServerContext* context) {
    return UnaryCall::begin(
        name, state, context,
        [make](const auto& call, ServerState& s, const grpc::ByteBuffer& request) {
          const absl::StatusOr<Answer> answer = make(*call, s, request);
          if (answer.ok()) call->finish(*answer);
          return answer.status();
        });
  };
}

}  // namespace

OpenInferenceService::OpenInferenceService(ServerState& state) {
  add_method("/inference.GRPCInferenceService/ServerLive", open_method(state, &server_live));
  add_method("/inference.GRPCInferenceService/ServerReady", open_method(state, &server_ready));
  add_method("/inference.GRPCInferenceService/ModelReady", open_method(state, &model_ready));
  add_method("/inference.GRPCInferenceService/ServerMetadata",
             closed_method("ServerMetadata", state, &server_metadata));
  add_method("/inference.GRPCInferenceService/ModelMetadata",
             closed_method("ModelMetadata", state, &model_metadata));
}

}  // namespace tandem
