#include "server/health_service.h"

#include <optional>
#include <utility>

namespace tandem {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Serving = HealthCheckResponse::ServingStatus;

namespace {

// SERVICE_UNKNOWN: there is no such service (now).
Serving status_of(const std::map<std::string, bool>& services, const std::string& name) {
  const auto it = services.find(name);
  if (it == services.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return it->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

}  // namespace

// One Watch stream: writes the latest status, one write in flight. Held by the service's set until
// OnDone.
class HealthService::WatchCall final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                       public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(HealthService* service, std::string name) : service_(service), name_(std::move(name)) {}

  void update(const std::map<std::string, bool>& services) {
    std::lock_guard lock(mutex_);
    wanted_ = status_of(services, name_);
    pump_locked();
  }

  void end(grpc::Status status) {
    std::lock_guard lock(mutex_);
    if (!end_.has_value()) end_ = std::move(status);
    pump_locked();
  }

 private:
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
    pump_locked();
  }

  void OnCancel() override { end(grpc::Status::CANCELLED); }

  void OnDone() override {
    const auto last = shared_from_this();
    std::lock_guard lock(service_->mutex_);
    service_->watches_.erase(last);
  }

  // REQUIRES: mutex_ is held.
  void pump_locked() {
    if (writing_ || finished_) return;
    if (end_.has_value()) {
      finished_ = true;
      Finish(*end_);
    } else if (wanted_ != written_) {
      writing_ = true;
      written_ = wanted_;
      message_.set_status(*wanted_);
      StartWrite(&message_);
    }
  }

  HealthService* const service_;
  const std::string name_;  // of what is watched
  std::mutex mutex_;
  std::optional<Serving> wanted_;
  std::optional<Serving> written_;
  std::optional<grpc::Status> end_;
  HealthCheckResponse message_;
  bool writing_ = false;
  bool finished_ = false;
};

HealthService::HealthService(std::function<std::map<std::string, bool>()> services)
    : services_(std::move(services)) {}
HealthService::~HealthService() = default;

void HealthService::changed() {
  std::lock_guard lock(mutex_);
  const auto services = services_();  // under the lock: the last one to ask is the last to tell
  for (const auto& watch : watches_) watch->update(services);
}

void HealthService::end_watches() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (const auto& watch : watches_) {
    watch->end(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Serving status = status_of(services_(), request->service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    // Names of models are not for everybody.
    reactor->Finish(grpc::Status(
        grpc::StatusCode::NOT_FOUND,
        "service: unknown; allowed: \"\", \"tandem.v1.Generation\", \"tandem.v1.Models\", "
        "\"tandem.v1.Generation/\" and the name of a model"));
    return reactor;
  }
  response->set_status(status);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const HealthCheckRequest* request) {
  const auto call = std::make_shared<WatchCall>(this, request->service());
  std::lock_guard lock(mutex_);
  watches_.insert(call);
  if (ended_) {
    call->end(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  } else {
    call->update(services_());
  }
  return call.get();
}

}  // namespace tandem
