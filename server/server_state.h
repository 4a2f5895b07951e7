// What all calls share. The server binds its port before models are loaded, so the engine arrives
// later; until then calls get UNAVAILABLE.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>

#include "absl/status/status.h"
#include "engine/base/stats.h"
#include "engine/host/engine.h"
#include "server/auth.h"
#include "server/server_config.h"
#include "server/work_queue.h"

namespace tandem {

// Calls that ended before the engine saw them.
struct RefusedCalls {
  std::array<Counter, kStatusCodes> by_status;
};

struct ServerState {
  ServerConfig config;
  Authenticator auth;
  RefusedCalls refused;
  // Tokenizing and detokenizing for the unary calls, off gRPC's threads.
  WorkQueue text_work{/*threads=*/1, /*max_waiting=*/1024};

  // Null while models load. Set once; the engine outlives all calls.
  std::atomic<Engine*> engine{nullptr};
  std::atomic<bool> draining{false};  // the engine itself refuses what comes then

  bool ready() const { return engine.load() != nullptr && !draining.load(); }

  absl::StatusOr<Engine*> ready_engine() const {
    Engine* const ready = engine.load();
    if (ready == nullptr) return absl::UnavailableError("not ready: models are loading");
    return ready;
  }
};

}  // namespace tandem
