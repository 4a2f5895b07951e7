// What all calls share. The server binds its port before models are loaded, so the engine arrives
// later; until then calls get UNAVAILABLE.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "engine/base/stats.h"
#include "engine/base/status.h"
#include "engine/host/engine.h"
#include "server/auth.h"
#include "server/server_config.h"

namespace tandem {

inline absl::Status not_ready() {
  return with_reason(absl::UnavailableError("not ready: models are loading"), "NOT_READY");
}

// Calls that ended before the engine saw them.
struct RefusedCalls {
  std::array<Counter, kStatusCodes> by_status;
};

struct ServerState {
  ServerConfig config;
  Authenticator auth;
  RefusedCalls refused;

  // Null while models load. Set once; the engine outlives all calls.
  std::atomic<Engine*> engine{nullptr};
  std::atomic<bool> draining{false};  // the engine itself refuses what comes then

  // What grpc.health.v1 knows, and whether it is served: the server as a whole (""), the services,
  // and each model as "tandem.v1.Generation/NAME". The whole and Generation are served while any
  // model is; Models describes them even then.
  std::map<std::string, bool> services() const {
    const Engine* const loaded = engine.load();
    const bool open = loaded != nullptr && !draining.load();
    bool any = false;
    std::map<std::string, bool> served;
    if (loaded != nullptr) {
      for (const DeploymentInfo& deployment : loaded->deployments()) {
        const bool available = open && deployment.available();
        served["tandem.v1.Generation/" + deployment.name] = available;
        any = any || available;
      }
    }
    served[""] = served["tandem.v1.Generation"] = any;
    served["tandem.v1.Models"] = open;
    return served;
  }
  bool ready() const { return services().at(""); }
  // Every model is on a device that is lost: only a new start helps.
  bool past_help() const { return !ready() && engine.load() != nullptr && !draining.load(); }

  absl::StatusOr<Engine*> ready_engine() const {
    Engine* const ready = engine.load();
    if (ready == nullptr) return not_ready();
    return ready;
  }
};

}  // namespace tandem
