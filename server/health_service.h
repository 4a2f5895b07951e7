// grpc.health.v1.Health, per service. (gRPC's built-in one has no descriptor, so that reflection
// lists it and clients cannot call it.)
//
// Which services there are, and which are served, is asked anew for every check; watches hear of it
// when changed() says so. Needs no credentials. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace tandem {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // `services`: whether it is served, by name. Thread-safe, and outlives this.
  explicit HealthService(std::function<std::map<std::string, bool>()> services);
  ~HealthService() override;

  // Lets watches know what `services` says now.
  void changed();

  // Ends all watches, and those to come, with UNAVAILABLE, so that they do not hold up a shutdown.
  void end_watches();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class WatchCall;

  const std::function<std::map<std::string, bool>()> services_;
  std::mutex mutex_;  // taken before a WatchCall's own
  bool ended_ = false;
  std::set<std::shared_ptr<WatchCall>> watches_;
};

}  // namespace tandem
