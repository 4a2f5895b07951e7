// LoRA adapters that clients load and unload: who may do so, and which paths.
//
// Loading reads files, so commands run on a thread of their own (ServerState::adapter_commands).
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/server_config.h"
#include "server/server_state.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

struct CallInfo;

// May this client change adapters? `identity`: as it authenticated, not as a gateway names it.
// FAILED_PRECONDITION: the server has no adapter_folder. PERMISSION_DENIED: clients have names, and
// this one is no administrator.
absl::Status check_administrator(const ServerConfig& config, const std::string& identity);

// The same rights, for calls that another setting turns on.
absl::Status check_rights(const ServerConfig& config, const std::string& identity);

// The real path of `path` below `folder`, to which a relative path refers. `field` and `setting`
// name them in errors, which are those of adapter_path().
absl::StatusOr<std::string> path_below(absl::string_view setting, const std::string& folder,
                                       absl::string_view field, const std::string& path);

// The real path of an adapter below `folder`, to which a relative `path` refers. PERMISSION_DENIED:
// it, or a file of its folder, is elsewhere after all links. NOT_FOUND: there is none.
absl::StatusOr<std::string> adapter_path(const std::string& folder, const std::string& path);

// Check the client, then carry the command out. An error is returned, or else `done` is called once
// on another thread.
using AdapterDone = std::function<void(const absl::Status&)>;
absl::Status load_adapter(ServerState& state, const CallInfo& info,
                          const v1::LoadAdapterRequest& request, AdapterDone done);
absl::Status unload_adapter(ServerState& state, const CallInfo& info,
                            const v1::UnloadAdapterRequest& request, AdapterDone done);

}  // namespace tandem
