#include "server/health_service.h"

#include <optional>
#include <utility>

namespace tandem {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Serving = HealthCheckResponse::ServingStatus;

namespace {

bool is_known(const std::string& service) {
  return service.empty() || service == "tandem.v1.Generation" || service == "tandem.v1.Models";
}

}  // namespace

// One Watch stream: writes the latest status, one write in flight. Held by the service's set until
// OnDone.
class HealthService::WatchCall final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                       public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(HealthService* service, bool known) : service_(service), known_(known) {}

  void update(Serving status) {
    std::lock_guard lock(mutex_);
    wanted_ = known_ ? status : HealthCheckResponse::SERVICE_UNKNOWN;
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
  const bool known_;
  std::mutex mutex_;
  std::optional<Serving> wanted_;
  std::optional<Serving> written_;
  std::optional<grpc::Status> end_;
  HealthCheckResponse message_;
  bool writing_ = false;
  bool finished_ = false;
};

HealthService::HealthService() = default;
HealthService::~HealthService() = default;

Serving HealthService::status_locked() const {
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::set_serving(bool serving) {
  std::lock_guard lock(mutex_);
  serving_ = serving;
  for (const auto& watch : watches_) watch->update(status_locked());
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
  if (!is_known(request->service())) {
    reactor->Finish(grpc::Status(
        grpc::StatusCode::NOT_FOUND,
        "service: unknown; allowed: \"\", \"tandem.v1.Generation\", \"tandem.v1.Models\""));
    return reactor;
  }
  {
    std::lock_guard lock(mutex_);
    response->set_status(status_locked());
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const HealthCheckRequest* request) {
  const auto call = std::make_shared<WatchCall>(this, is_known(request->service()));
  std::lock_guard lock(mutex_);
  watches_.insert(call);
  if (ended_) {
    call->end(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  } else {
    call->update(status_locked());
  }
  return call.get();
}

}  // namespace tandem
