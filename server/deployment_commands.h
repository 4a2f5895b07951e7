// Deployments that clients load, replace, unload and list: who may do so, and which files.
//
// Commands take long, so they run on threads of their own (ServerState::deployment_commands).
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/engine.h"
#include "server/server_config.h"
#include "server/server_state.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

struct CallInfo;

// The deployment of a request's text, whose paths are below `config.model_folder`. `engine` has the
// models that it may name. Errors name the line and the field. PERMISSION_DENIED: a path, or a file
// of its folder, is elsewhere after all links.
absl::StatusOr<Engine::DeploymentLoad> deployment_of(const ServerConfig& config,
                                                     const Engine& engine, const std::string& text);

// Check the client, then carry the command out. An error is returned, or else `done` is called once
// on another thread. FAILED_PRECONDITION: the server has no model_folder.
template <class Response>
using DeploymentDone = std::function<void(const absl::StatusOr<Response>&)>;
absl::Status load_deployment(ServerState& state, const CallInfo& info,
                             const v1::LoadDeploymentRequest& request,
                             DeploymentDone<v1::LoadDeploymentResponse> done);
absl::Status replace_deployment(ServerState& state, const CallInfo& info,
                                const v1::ReplaceDeploymentRequest& request,
                                DeploymentDone<v1::ReplaceDeploymentResponse> done);
absl::Status unload_deployment(ServerState& state, const CallInfo& info,
                               const v1::UnloadDeploymentRequest& request,
                               DeploymentDone<v1::UnloadDeploymentResponse> done);
absl::Status list_deployments(ServerState& state, const CallInfo& info,
                              const v1::ListDeploymentsRequest& request,
                              DeploymentDone<v1::ListDeploymentsResponse> done);

}  // namespace tandem
