#include "server/adapter_commands.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "server/grpc/call_info.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

absl::Status denied(const std::string& what) {
  return with_reason(absl::PermissionDeniedError(what), "ADMIN_DENIED");
}

// Is `path` below `folder`? Both are real paths.
bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] =
      std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end() && in_path != path.end();
}

}  // namespace

absl::Status check_administrator(const ServerConfig& config, const std::string& identity) {
  if (config.adapter_folder.empty()) {
    return absl::FailedPreconditionError(
        "server.adapter_folder: unset; allowed: a folder of adapters that clients may load");
  }
  return check_rights(config, identity);
}

absl::Status check_rights(const ServerConfig& config, const std::string& identity) {
  const bool named = !config.bearer_token_file.empty() || !config.tls_files.client_ca.empty();
  if (!named || config.administrators.contains(identity)) return absl::OkStatus();
  return denied(
      absl::StrCat("client: ", quote_value(identity), "; allowed: those in server.administrators"));
}

absl::StatusOr<std::string> path_below(absl::string_view setting, const std::string& folder,
                                       absl::string_view field, const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return out_of_range(field, quote_value(path), absl::StrCat("a path below ", setting));
  }
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return absl::NotFoundError(absl::StrCat(setting, ": it is not there any more"));
  const fs::path real = fs::weakly_canonical(root / path, error);
  if (error || !is_below(real, root)) {
    return denied(absl::StrCat(field, ": ", quote_value(path), "; allowed: paths below ", setting));
  }
  if (fs::exists(real, error)) return real.string();
  return absl::NotFoundError(
      absl::StrCat(field, ": ", quote_value(path), ": no such file or folder"));
}

absl::StatusOr<std::string> adapter_path(const std::string& folder, const std::string& path) {
  constexpr char kSetting[] = "server.adapter_folder";
  TANDEM_ASSIGN_OR_RETURN(const std::string real, path_below(kSetting, folder, "path", path));
  std::error_code error;
  if (!fs::is_directory(real, error)) return real;
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::string part = absl::StrCat(real, "/", file);
    const absl::Status below = path_below(kSetting, folder, "path", part).status();
    if (absl::IsPermissionDenied(below)) {
      return denied(absl::StrCat("path: ", quote_value(path), "; allowed: paths below ", kSetting));
    }
  }
  return real;
}

absl::Status load_adapter(ServerState& state, const CallInfo& info,
                          const v1::LoadAdapterRequest& request, AdapterDone done) {
  TANDEM_RETURN_IF_ERROR(check_administrator(state.config, info.identity));
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, state.ready_engine());
  state.adapter_commands->post(
      [engine, folder = state.config.adapter_folder, request, done = std::move(done)] {
        const absl::StatusOr<std::string> path = adapter_path(folder, request.path());
        done(!path.ok() ? path.status()
                        : engine->load_adapter({.model = request.model(),
                                                .name = request.adapter(),
                                                .path = *path,
                                                .replace = request.replace()}));
      });
  return absl::OkStatus();
}

absl::Status unload_adapter(ServerState& state, const CallInfo& info,
                            const v1::UnloadAdapterRequest& request, AdapterDone done) {
  TANDEM_RETURN_IF_ERROR(check_administrator(state.config, info.identity));
  TANDEM_ASSIGN_OR_RETURN(Engine* const engine, state.ready_engine());
  state.adapter_commands->post([engine, request, done = std::move(done)] {
    done(engine->unload_adapter(request.model(), request.adapter()));
  });
  return absl::OkStatus();
}

}  // namespace tandem
