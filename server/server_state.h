// The state shared by all calls. The server binds its ports before the models are loaded; until
// then calls get UNAVAILABLE.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/async/worker.h"
#include "engine/base/memory_account.h"
#include "engine/base/mutex.h"
#include "engine/base/stats.h"
#include "engine/base/status.h"
#include "engine/host/engine.h"
#include "server/auth.h"
#include "server/edge/open_calls.h"
#include "server/edge/timeouts.h"
#include "server/server_config.h"

namespace tandem {

struct CallInfo;
struct CallSummary;

inline absl::Status not_ready() {
  return with_reason(absl::UnavailableError("not ready: models are loading"), "NOT_READY");
}

// Calls that ended before they reached the engine.
struct RefusedCalls {
  std::array<Counter, kStatusCodes> by_status;
};

class ServerState {
 public:
  explicit ServerState(ServerConfig c)
      : config(std::move(c)),
        memory(std::make_shared<MemoryAccount>(config.memory_bytes - config.max_transport_bytes)) {}

  const ServerConfig config;
  const SteadyClock clock;
  // The memory that clients cause, without gRPC's buffers. Never null.
  const std::shared_ptr<MemoryAccount> memory;
  Timeouts timeouts{&clock};  // of calls; the server starts its thread
  RefusedCalls refused;

  // Closes the connection of a peer that exceeds the protocol's limits. Set before calls arrive.
  std::function<void(const std::string& peer)> close_connection = [](const std::string&) {};
  OpenCalls calls{{config.max_open_calls, config.max_concurrent_streams},
                  [this](const std::string& peer) { close_connection(peer); }};
  // Calls of health need no credentials, so they have a limit of their own.
  OpenCalls health_calls{{/*total=*/512, /*per_connection=*/128},
                         [this](const std::string& peer) { close_connection(peer); }};

  // The same for reflection.
  OpenCalls reflection_calls{{/*total=*/64, /*per_connection=*/16},
                             [this](const std::string& peer) { close_connection(peer); }};

  // Loads and unloads LoRA adapters. Null: clients may not.
  const std::unique_ptr<Worker> adapter_commands =
      config.adapter_folder.empty() ? nullptr
                                    : std::make_unique<Worker>(1, Worker::Around(), "adapters");

  // Loads, unloads and lists deployments; a thread waits for requests of an unloaded one. Null:
  // clients may not, or all calls have ended.
  std::unique_ptr<Worker> deployment_commands =
      config.model_folder.empty() ? nullptr
                                  : std::make_unique<Worker>(4, Worker::Around(), "deployments");
  // Called when deployments have come or gone. Set before calls arrive.
  std::function<void()> deployments_changed = [] {};

  // Called at the end of every call; may be null. Set before calls arrive. Must not block.
  std::function<void(const CallInfo&, const CallSummary&, const absl::Status&)> call_ended;

  // Authenticates clients. May be replaced at any time.
  std::shared_ptr<const Authenticator> authenticator() const {
    const MutexLock lock(&auth_mutex_);
    return auth_;
  }
  void authenticate_by(Authenticator next) {
    const MutexLock lock(&auth_mutex_);
    auth_ = std::make_shared<const Authenticator>(std::move(next));
  }

  // Null while models load. Set once; the engine outlives all calls.
  std::atomic<Engine*> engine{nullptr};
  std::atomic<bool> draining{false};  // the engine rejects new requests
  // A device, the loop or gRPC makes no progress (Monitor).
  std::atomic<bool> stuck{false};

  // The services of grpc.health.v1 and whether they are served: the server (""), each service, and
  // each model as "tandem.v1.Generation/NAME". The server and Generation are served while any model
  // is. Models is served until a drain.
  std::map<std::string, bool> services() const {
    const Engine* const loaded = engine.load();
    const bool open = loaded != nullptr && !draining.load() && !stuck.load();
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
  // Every model is on a lost device; only a restart helps.
  bool all_devices_lost() const {
    const Engine* const loaded = engine.load();
    return loaded != nullptr && !draining.load() && !stuck.load() && !ready() &&
           !loaded->deployments().empty();
  }

  absl::StatusOr<Engine*> ready_engine() const {
    Engine* const ready = engine.load();
    if (ready == nullptr) return not_ready();
    return ready;
  }

 private:
  mutable Mutex auth_mutex_;
  std::shared_ptr<const Authenticator> auth_ ABSL_GUARDED_BY(auth_mutex_) =
      std::make_shared<const Authenticator>();
};

}  // namespace tandem
