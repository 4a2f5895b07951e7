// grpc.health.v1.Health, per service. (gRPC's built-in one has no descriptor, so that reflection
// lists it and clients cannot call it.)
//
// One state for all services of this server: SERVING between the end of the warm-up and the start
// of the drain. Needs no credentials. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace tandem {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  ~HealthService() override;
  HealthService();

  void set_serving(bool serving);

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

  grpc::health::v1::HealthCheckResponse::ServingStatus status_locked() const;

  std::mutex mutex_;  // taken before a WatchCall's own
  bool serving_ = false;
  bool ended_ = false;
  std::set<std::shared_ptr<WatchCall>> watches_;
};

}  // namespace tandem
