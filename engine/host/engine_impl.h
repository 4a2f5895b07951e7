// What an Engine is made of. engine.cpp brings it up and down; engine_requests.cpp has the way of a
// request from submit() to the loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/async/worker.h"
#include "engine/base/config.h"
#include "engine/base/status.h"
#include "engine/host/deployment.h"
#include "engine/host/engine.h"
#include "engine/host/models/models.h"
#include "engine/host/requests/claims.h"
#include "engine/host/requests/ingress.h"
#include "engine/host/requests/quotas.h"
#include "engine/host/requests/waiting_budget.h"
#include "engine/sched/loop.h"

namespace tandem {

// A request whose turn to be tokenized has come.
template <class Request>
struct Turn {
  RequestId id;
  Request request;
  const Deployment* deployment;
  TimePoint submitted;
  std::shared_ptr<Claims> claims;
};

struct Engine::Impl {
  explicit Impl(EngineConfig c);
  ~Impl();

  absl::Status start(const std::function<void(absl::string_view)>& progress);
  absl::Status warm_up(const LoadedModel& model);
  absl::StatusOr<const Deployment*> find(absl::string_view name) const;

  // A request's way in. Exactly one is called, once: `turn` on a thread of the ingress, which calls
  // one_gone() when the request has ended; or `fail`, on this thread when the request is refused at
  // once, and then nothing of it is kept.
  template <class Request>
  RequestId take(Request request, const std::function<void(const Turn<Request>&)>& turn,
                 const std::function<void(const absl::Status&)>& fail);
  template <class Request>
  absl::StatusOr<const Deployment*> check(const Request& request);
  absl::StatusOr<std::shared_ptr<Claims>> claim(const std::string& client, int64_t bytes);
  absl::Status enter(Ingress::Arrival arrival, Claims* claims);
  absl::Status refused(RejectReason reason, absl::Status status);
  void count_failure(const absl::Status& status);
  void prepare(const Turn<GenerateRequest>& turn, const std::shared_ptr<Sink>& sink);
  void prepare(const Turn<ScoreRequest>& turn,
               const std::function<void(absl::StatusOr<ScoreResult>)>& done);

  void stop_running();
  void one_gone();
  bool lost(DeviceId device) const { return loop->device_lost(device); }
  bool lost(size_t device) const { return lost(DeviceId(static_cast<int64_t>(device))); }
  void tell_of_lost_devices();

  const EngineConfig config;
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<Devices> devices;
  std::vector<Deployment> deployments;
  std::unique_ptr<Loop> loop;
  std::thread loop_thread;

  std::atomic<RequestId> next_id{1};
  std::atomic<bool> draining{false};
  std::mutex mutex;  // guards what follows
  int64_t live = 0;  // accepted, and the last call to their owners to come
  std::condition_variable fewer;

  std::mutex loss_mutex;  // guards what follows; held while it is called
  std::function<void(const std::string&)> on_loss;
  std::vector<bool> told = std::vector<bool>(config.devices.size());  // by device

  WaitingBudget budget;
  Quotas quotas;
  Worker text;      // its threads use the above,
  Ingress ingress;  // and those of this one the pool too
};

}  // namespace tandem
