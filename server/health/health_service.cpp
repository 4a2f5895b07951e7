#include "server/health/health_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/edge/peer.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/raw_message.h"

namespace tandem {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Serving = HealthCheckResponse::ServingStatus;

namespace {

// SERVICE_UNKNOWN if there is currently no such service.
Serving status_of(const std::map<std::string, bool>& services, const std::string& name) {
  const auto it = services.find(name);
  if (it == services.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return it->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

absl::Status unknown_service() {
  // The message does not list the models: the call needs no credentials.
  return absl::NotFoundError(
      "service: unknown; allowed: \"\", \"tandem.v1.Generation\", \"tandem.v1.Models\", "
      "\"tandem.v1.Generation/\" and the name of a model");
}

grpc::ByteBuffer answer(Serving status) {
  HealthCheckResponse message;
  message.set_status(status);
  return to_buffer(message);
}

absl::StatusOr<std::string> service_in(const grpc::ByteBuffer& request) {
  HealthCheckRequest message;
  TANDEM_RETURN_IF_ERROR(parse_message(request, &message));
  if (message.service().size() > HealthService::kMaxName) {
    return out_of_range("service", absl::StrCat(message.service().size(), " bytes"),
                        absl::StrCat("at most ", HealthService::kMaxName));
  }
  return message.service();
}

}  // namespace

// A Watch stream: sends the latest status, with one write in flight. Owned by itself until
// OnDone(), and by the service's set.
class HealthService::WatchCall final : public HealthCall,
                                       public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(HealthService* owner, grpc::CallbackServerContext* context)
      : HealthCall(owner->method_, context), service_(*owner) {}

  static RawReactor* create(HealthService* service, grpc::CallbackServerContext* context) {
    const auto call = std::make_shared<WatchCall>(service, context);
    call->self_ = call;
    call->start();
    return call.get();
  }

  void update(const std::map<std::string, bool>& services) {
    const MutexLock lock(&mutex_);
    wanted_ = status_of(services, name_);
    pump_locked();
  }

  void end(grpc::Status status) {
    const MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = std::move(status);
    pump_locked();
  }

 private:
  void on_request(const grpc::ByteBuffer& request) override {
    absl::StatusOr<std::string> name = service_in(request);
    if (!name.ok()) return refuse(name.status());
    name_ = *std::move(name);
    const absl::Status begun = service_.begin(shared_from_this());
    if (!begun.ok()) refuse(begun);
  }

  void refuse(const absl::Status& status) override { end(to_grpc(status, "")); }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
    pump_locked();
  }

  void OnCancel() override { end(grpc::Status::CANCELLED); }

  void OnDone() override {
    const std::shared_ptr<WatchCall> last = std::move(self_);  // may destroy *this on return
    leave();
    service_.forget(last);
  }

  void pump_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (end_.has_value()) {
      finished_ = true;
      Finish(*end_);
    } else if (wanted_ != written_) {
      writing_ = true;
      written_ = wanted_;
      message_ = answer(*wanted_);
      StartWrite(&message_);
    }
  }

  HealthService& service_;
  std::shared_ptr<WatchCall> self_;
  std::string name_;  // of the watched service; set before the call is shared
  Mutex mutex_;
  std::optional<Serving> wanted_ ABSL_GUARDED_BY(mutex_);
  std::optional<Serving> written_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer message_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

HealthService::HealthService(std::function<std::map<std::string, bool>()> services,
                             OpenCalls* calls, Timeouts* timeouts)
    : services_(std::move(services)),
      method_{calls, timeouts, kMaxName + /*tag and length=*/3, "service"} {
  add_method("/grpc.health.v1.Health/Check", [this](grpc::CallbackServerContext* context) {
    return answer_health_call(
        method_, context,
        [this](const grpc::ByteBuffer& request) -> absl::StatusOr<grpc::ByteBuffer> {
          TANDEM_ASSIGN_OR_RETURN(const std::string name, service_in(request));
          const Serving status = status_of(services_(), name);
          if (status == HealthCheckResponse::SERVICE_UNKNOWN) return unknown_service();
          return answer(status);
        });
  });
  add_method("/grpc.health.v1.Health/Watch", [this](grpc::CallbackServerContext* context) {
    return WatchCall::create(this, context);
  });
}
HealthService::~HealthService() = default;

void HealthService::changed() {
  const MutexLock lock(&mutex_);
  const auto services = services_();  // under the lock, so that the last query is also sent last
  for (const auto& watch : watches_) watch->update(services);
}

void HealthService::end_watches() {
  const MutexLock lock(&mutex_);
  ended_ = true;
  for (const auto& watch : watches_) {
    watch->end(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
  }
}

absl::Status HealthService::begin(const std::shared_ptr<WatchCall>& watch) {
  const MutexLock lock(&mutex_);
  if (ended_) return absl::UnavailableError("the server is shutting down");
  const std::string& host = watch->host();
  const auto of_host = std::count_if(watches_.begin(), watches_.end(), [&](const auto& other) {
    return !host.empty() && other->host() == host;
  });
  if (std::ssize(watches_) >= kMaxWatches || of_host >= host_share(kMaxWatches)) {
    return absl::ResourceExhaustedError(absl::StrCat("too many health watches: limit ", kMaxWatches,
                                                     " (of one host ", host_share(kMaxWatches),
                                                     "); use Check instead"));
  }
  watches_.insert(watch);
  watch->update(services_());
  return absl::OkStatus();
}

void HealthService::forget(const std::shared_ptr<WatchCall>& watch) {
  const MutexLock lock(&mutex_);
  watches_.erase(watch);
}

}  // namespace tandem
