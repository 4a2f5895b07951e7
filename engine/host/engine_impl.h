// Members of Engine. engine.cpp starts and stops it; engine_requests.cpp takes requests from
// submit() to the loop; engine_adapters.cpp loads and unloads LoRA adapters;
// engine_deployments.cpp deployments and models; engine_idle.cpp idle deployments.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/async/worker.h"
#include "engine/base/config.h"
#include "engine/base/memory_account.h"
#include "engine/base/mutex.h"
#include "engine/base/status.h"
#include "engine/grammar/grammars.h"
#include "engine/host/deployment.h"
#include "engine/host/engine.h"
#include "engine/host/models/models.h"
#include "engine/host/prefixes/prefix_store.h"
#include "engine/host/requests/claims.h"
#include "engine/host/requests/ingress.h"
#include "engine/host/requests/quotas.h"
#include "engine/host/requests/waiting_budget.h"
#include "engine/host/target.h"
#include "engine/sched/loop.h"

namespace tandem {

// A request that is being tokenized.
template <class Request>
struct StartedRequest {
  RequestId id;
  Request request;
  DeploymentRef deployment;
  TimePoint submitted;
  std::shared_ptr<Claims> claims;
};

struct OpenCall {
  Quotas::OpenRequest open;
};

struct Engine::Impl {
  Impl(EngineConfig c, std::shared_ptr<MemoryAccount> account);
  ~Impl();

  absl::Status start();
  absl::Status warm_up(const LoadedModel& model);
  absl::StatusOr<Target> find(absl::string_view model, absl::string_view adapter = "") const {
    return find_target(*deployments(), model, adapter);
  }
  // Those that take requests.
  std::shared_ptr<const DeploymentTable> deployments() const {
    const MutexLock lock(&table_mutex);
    return table;
  }

  // Checks a request and queues it for tokenizing. Calls one of the functions, once: `start`, on a
  // tokenizing thread, which must cause request_ended(); or `fail`, on this thread if the request
  // is refused at once.
  template <class Request>
  RequestId accept(Request request,
                   const std::function<void(const StartedRequest<Request>&)>& start,
                   const std::function<void(const absl::Status&)>& fail);
  // Sets the request's adapter, which its model may name.
  template <class Request>
  absl::StatusOr<DeploymentRef> check(Request* request);
  // The part of it after the deployment is found.
  template <class Request>
  absl::Status check_target(const Target& target, Request* request);
  // Has the deployment loaded that held requests wait for.
  void load_for_held(const DeploymentRef& unloaded);
  // The loaded deployment of a request that was held.
  template <class Request>
  absl::Status find_loaded(StartedRequest<Request>* started);
  // A model that takes requests now.
  absl::StatusOr<Target> check_model(absl::string_view model, absl::string_view adapter = "");
  // The deployment of this name; of an empty one: the only one.
  absl::StatusOr<DeploymentRef> only_deployment(absl::string_view model) const;
  // Frees what an adapter of a large model had, which no request has any more.
  void free_adapter(const LoadedModel& large, const DeploymentAdapter& adapter);

  // The loop's description of a loaded model, which has a series from now on.
  LoopModel register_model(const LoadedModel& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  std::shared_ptr<const LoadedModel> lease(const std::string& model)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  // Completes a deployment, whose models it keeps. When its last reference is dropped, it and the
  // models that only it had are freed on the thread of `cleanup`.
  DeploymentRef publishable(Deployment made) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  // Frees all models without lease.
  void free_unused_models() ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  // `again`: what was unloaded; null: a new deployment.
  absl::Status check_load(const DeploymentLoad& load, const UnloadedDeployment* again) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  absl::StatusOr<DeploymentRef> build(const DeploymentLoad& load, const Deployment* again = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  // Unloads an idle deployment.
  void set_aside(const DeploymentRef& idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes);
  // Loads the unloaded deployment of this name, if there still is one, and starts or ends the
  // requests that wait for the name.
  absl::Status load_again(const DeploymentRef& asked);
  // Removes the deployment from the table, and adds `next` unless it is null. Returns the old one;
  // null: there is none.
  DeploymentRef exchange(const std::string& name, DeploymentRef next);
  // The same for one that is still in the table. False: it is not.
  bool exchange(const DeploymentRef& old, DeploymentRef next);
  // A deployment that is freed on the thread of `cleanup`, with the models that only it had.
  DeploymentRef shared(Deployment made);
  void end_request(RequestId id, const absl::Status& status);
  absl::StatusOr<Quotas::OpenRequest> open_request(const std::string& client);
  template <class Request>
  absl::StatusOr<std::shared_ptr<Claims>> claim(const Request& request, int64_t bytes);
  // Sets the memory of a request. RESOURCE_EXHAUSTED if a limit is reached.
  absl::Status hold(int64_t bytes, Claims* claims);
  // The same, with what rendering and tokenizing its prompt may need.
  template <class Request>
  absl::Status hold_prompt(const Request& request, Claims* claims);
  absl::Status enter(Ingress::Arrival arrival, Claims* claims);
  absl::Status refused(RejectReason reason, absl::Status status);
  void count_failure(const absl::Status& status);
  // Ends a request that has not reached the loop; `report` calls its owner.
  template <class Report>
  void end_early(Claims* claims, const absl::Status& status, const Report& report);
  void prepare(const StartedRequest<GenerateRequest>& started, const std::shared_ptr<Sink>& sink);
  void prepare(const StartedRequest<ScoreRequest>& started,
               const std::function<void(absl::StatusOr<ScoreResult>)>& done);
  void prepare(const StartedRequest<EmbedRequest>& started,
               const std::function<void(absl::StatusOr<EmbedResult>)>& done);

  void stop_running();
  void stop();  // joins the loop
  void read_statistics();
  void request_ended();
  bool lost(DeviceId device) const { return loop->device_lost(device); }
  bool lost(size_t device) const { return lost(DeviceId(static_cast<int64_t>(device))); }
  void report_lost_devices();

  const EngineConfig config;
  const std::shared_ptr<MemoryAccount> memory;  // null: memory is not counted
  SteadyClock clock;
  const Clock* idle_clock = &clock;
  std::function<void(absl::string_view)> progress;  // may be empty
  Metrics metrics;
  Grammars grammars;  // outlives the devices, which ask its constraints
  std::unique_ptr<Devices> devices;
  std::unique_ptr<Loop> loop;
  std::thread loop_thread;
  absl::Status statistics_read;
  PrefixListener* prefix_listener = nullptr;  // may be null
  std::unique_ptr<PrefixStore> prefixes;      // null: there is none
  absl::Status prefixes_read;

  // Held while models are loaded or freed. Taken before the mutexes below.
  mutable Mutex changes;
  bool closing ABSL_GUARDED_BY(changes) = false;  // the loop ends: nothing is freed any more
  // By name. A model is in use while its lease has not expired.
  std::map<std::string, std::weak_ptr<const LoadedModel>> leases ABSL_GUARDED_BY(changes);
  std::map<ModelId, std::shared_ptr<ModelSeries>> model_series ABSL_GUARDED_BY(changes);
  uint16_t prefix_instances ABSL_GUARDED_BY(changes) = 0;  // LoopModel::instance of the next model
  // Models of the configuration that no deployment has: they stay.
  std::vector<std::shared_ptr<const LoadedModel>> spare ABSL_GUARDED_BY(changes);

  mutable Mutex table_mutex;
  std::shared_ptr<const DeploymentTable> table ABSL_GUARDED_BY(table_mutex) =
      std::make_shared<const DeploymentTable>();
  // That have left the table. Expired: gone.
  std::vector<std::weak_ptr<const Deployment>> drained ABSL_GUARDED_BY(table_mutex);

  Mutex adapter_loads;  // held while an adapter is loaded
  // By large model: the id of the next adapter. Ids are not used again, as prefixes have them.
  std::map<ModelId, int64_t> next_lora ABSL_GUARDED_BY(adapter_loads);

  std::atomic<RequestId> next_id{1};
  std::atomic<bool> draining{false};
  Mutex mutex;
  CondVar live_changed;
  // Accepted requests whose last callback has not returned.
  int64_t live ABSL_GUARDED_BY(mutex) = 0;

  Mutex loss_mutex;  // held during the call of on_loss
  std::function<void(const std::string&)> on_loss ABSL_GUARDED_BY(loss_mutex);
  std::vector<bool> loss_reported ABSL_GUARDED_BY(loss_mutex) =
      std::vector<bool>(config.devices.size());  // by device

  WaitingBudget budget;
  Quotas quotas;
  // Destroyed first, in reverse order: their threads use the members above.
  Worker cleanup{1, {}, "freeing and loading models"};
  Worker text;
  Ingress ingress;
};

}  // namespace tandem
