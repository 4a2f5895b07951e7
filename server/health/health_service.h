// grpc.health.v1.Health, per service. (gRPC's built-in service has no descriptor, so reflection
// lists it and clients cannot call it.)
//
// Each check queries the current services; watches are updated by changed(). Needs no credentials,
// so calls (ServerState::health_calls), watches and the length of names are limited. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/base/mutex.h"
#include "grpc/health/v1/health.pb.h"
#include "server/edge/open_calls.h"
#include "server/edge/timeouts.h"
#include "server/grpc/raw_service.h"
#include "server/health/health_call.h"

namespace tandem {

class HealthService final : public RawService {
 public:
  static constexpr size_t kMaxName = 128;  // bytes of a service name
  static constexpr int kMaxWatches = 128;  // per host: host_share()

  // `services`: name -> whether it is served. Thread-safe; outlives this, as do `calls` and
  // `timeouts`.
  HealthService(std::function<std::map<std::string, bool>()> services, OpenCalls* calls,
                Timeouts* timeouts);
  ~HealthService() override;

  // Updates all watches from `services`.
  void changed();

  // Ends all current and future watches with UNAVAILABLE, so that they do not delay a shutdown.
  void end_watches();

 private:
  class WatchCall;

  absl::Status begin(const std::shared_ptr<WatchCall>& watch);
  void forget(const std::shared_ptr<WatchCall>& watch);

  const std::function<std::map<std::string, bool>()> services_;
  const HealthMethod method_;
  Mutex mutex_;
  std::set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
