#include "server/deployment_commands.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config.h"
#include "server/adapter_commands.h"
#include "server/grpc/call_info.h"
#include "server/grpc/response_to_proto.h"
#include "server/observe/log.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr char kSetting[] = "server.model_folder";
constexpr double kMostDrainSeconds = 86400;

// A file or folder below the model folder, with all files of the folder.
absl::Status check_path(const std::string& folder, const std::string& field,
                        const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string real, path_below(kSetting, folder, field, path));
  std::error_code error;
  if (!fs::is_directory(real, error)) return absl::OkStatus();
  for (fs::directory_iterator file(real, error), end; !error && file != end;
       file.increment(error)) {
    TANDEM_RETURN_IF_ERROR(path_below(kSetting, folder, field, file->path().string()).status());
  }
  return absl::OkStatus();
}

absl::Status check_paths(const std::string& folder, const ConfigFile& file) {
  for (int i = 0; i < file.proto().models_size(); ++i) {
    const auto& model = file.proto().models(i);
    const std::string field = absl::StrCat("models[", i, "].");
    if (!model.fake().trace_file().empty()) {
      return file.error(field + "fake.trace_file", quote_value(model.fake().trace_file()), "unset");
    }
    if (!model.has_fake()) {
      TANDEM_RETURN_IF_ERROR(check_path(folder, field + "path", model.path()));
    }
    for (int e = 0; e < model.extras_size(); ++e) {
      TANDEM_RETURN_IF_ERROR(
          check_path(folder, absl::StrCat(field, "extras[", e, "].path"), model.extras(e).path()));
    }
  }
  for (const auto& deployment : file.proto().deployments()) {
    for (int a = 0; a < deployment.adapters_size(); ++a) {
      if (deployment.adapters(a).path().empty()) continue;
      TANDEM_RETURN_IF_ERROR(check_path(folder,
                                        absl::StrCat("deployments[0].adapters[", a, "].path"),
                                        deployment.adapters(a).path()));
    }
  }
  return absl::OkStatus();
}

// Checks the client, and posts `run`, which returns the response.
template <class Response, class Run>
absl::Status start(ServerState& state, const CallInfo& info, DeploymentDone<Response> done,
                   Run run) {
  if (state.deployment_commands == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(kSetting, ": unset; allowed: a folder of models that clients may load"));
  }
  TANDEM_RETURN_IF_ERROR(check_rights(state.config, info.identity));
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, state.ready_engine());
  state.deployment_commands->post(
      [engine, done = std::move(done), run = std::move(run)] { done(run(engine)); });
  return absl::OkStatus();
}

absl::Status load(ServerState& state, Engine* engine, const std::string& text, bool replace) {
  TANDEM_ASSIGN_OR_RETURN(Engine::DeploymentLoad load, deployment_of(state.config, *engine, text));
  load.replace = replace;
  load.progress = [](absl::string_view line) {
    log_info("model", {{"loaded", line, LogField::kMaxMessage}});
  };
  TANDEM_RETURN_IF_ERROR(engine->load_deployment(load));
  log_info("deployment",
           {{"name", load.deployment.name}, {"change", replace ? "replaced" : "loaded"}});
  state.deployments_changed();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Engine::DeploymentLoad> deployment_of(const ServerConfig& config,
                                                     const Engine& engine,
                                                     const std::string& text) {
  // The name is that of a file of the folder, so that paths are relative to it.
  TANDEM_ASSIGN_OR_RETURN(const ConfigFile file,
                          ConfigFile::parse(text, config.model_folder + "/configuration"));
  TANDEM_RETURN_IF_ERROR(check_paths(config.model_folder, file));
  const bool knows_clients =
      !config.bearer_token_file.empty() || !config.tls_files.client_ca.empty();
  TANDEM_ASSIGN_OR_RETURN(
      AddedDeployment added,
      added_deployment(file, engine.loaded_models(), engine.device_configs(), knows_clients));
  return Engine::DeploymentLoad{.models = std::move(added.models),
                                .deployment = std::move(added.deployment)};
}

absl::Status load_deployment(ServerState& state, const CallInfo& info,
                             const v1::LoadDeploymentRequest& request,
                             DeploymentDone<v1::LoadDeploymentResponse> done) {
  return start(state, info, std::move(done),
               [&state, text = request.configuration()](
                   Engine* engine) -> absl::StatusOr<v1::LoadDeploymentResponse> {
                 TANDEM_RETURN_IF_ERROR(load(state, engine, text, /*replace=*/false));
                 return v1::LoadDeploymentResponse();
               });
}

absl::Status replace_deployment(ServerState& state, const CallInfo& info,
                                const v1::ReplaceDeploymentRequest& request,
                                DeploymentDone<v1::ReplaceDeploymentResponse> done) {
  return start(state, info, std::move(done),
               [&state, text = request.configuration()](
                   Engine* engine) -> absl::StatusOr<v1::ReplaceDeploymentResponse> {
                 TANDEM_RETURN_IF_ERROR(load(state, engine, text, /*replace=*/true));
                 return v1::ReplaceDeploymentResponse();
               });
}

absl::Status unload_deployment(ServerState& state, const CallInfo& info,
                               const v1::UnloadDeploymentRequest& request,
                               DeploymentDone<v1::UnloadDeploymentResponse> done) {
  std::optional<Duration> limit;
  if (request.has_drain_seconds()) {
    if (!(request.drain_seconds() >= 0 && request.drain_seconds() <= kMostDrainSeconds)) {
      return out_of_range("drain_seconds", request.drain_seconds(), "[0, 86400]");
    }
    limit = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(request.drain_seconds()));
  }
  return start(state, info, std::move(done),
               [&state, name = request.model(),
                limit](Engine* engine) -> absl::StatusOr<v1::UnloadDeploymentResponse> {
                 TANDEM_RETURN_IF_ERROR(engine->unload_deployment(
                     name, limit, [&state] { state.deployments_changed(); }));
                 log_info("deployment", {{"name", name}, {"change", "unloaded"}});
                 return v1::UnloadDeploymentResponse();
               });
}

absl::Status list_deployments(ServerState& state, const CallInfo& info,
                              const v1::ListDeploymentsRequest&,
                              DeploymentDone<v1::ListDeploymentsResponse> done) {
  return start(state, info, std::move(done),
               [](Engine* engine) -> absl::StatusOr<v1::ListDeploymentsResponse> {
                 v1::ListDeploymentsResponse answer;
                 for (const DeploymentState& one : engine->deployment_states()) {
                   v1::ServedDeployment& served = *answer.add_deployments();
                   *served.mutable_model() = model_to_proto(one.info);
                   served.set_draining(one.draining);
                   served.set_open_requests(one.open_requests);
                 }
                 return answer;
               });
}

}  // namespace tandem
