// grpc.health.v1.Health, per service. (gRPC's built-in one has no descriptor, so that reflection
// lists it and clients cannot call it.)
//
// Which services there are, and which are served, is asked anew for every check; watches hear of it
// when changed() says so. Needs no credentials, so it is bounded: in calls
// (ServerState::health_calls), watches, and the length of names. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/base/mutex.h"
#include "grpc/health/v1/health.pb.h"
#include "server/edge/open_calls.h"
#include "server/grpc/raw_service.h"

namespace tandem {

class HealthService final : public RawService {
 public:
  static constexpr size_t kMaxName = 128;  // bytes of a service's name
  static constexpr int kMaxWatches = 128;  // of one host: host_share()

  // `services`: whether it is served, by name. Thread-safe, and outlives this, as does `calls`.
  HealthService(std::function<std::map<std::string, bool>()> services, OpenCalls* calls);
  ~HealthService() override;

  // Lets watches know what `services` says now.
  void changed();

  // Ends all watches, and those to come, with UNAVAILABLE, so that they do not hold up a shutdown.
  void end_watches();

 private:
  class Call;
  class CheckCall;
  class WatchCall;

  absl::Status begin(const std::shared_ptr<WatchCall>& watch);
  void forget(const std::shared_ptr<WatchCall>& watch);

  const std::function<std::map<std::string, bool>()> services_;
  OpenCalls& calls_;
  Mutex mutex_;
  std::set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
