// Idle deployments: their models are unloaded, and loaded again by the next request.
//
// An unloaded deployment stays in the table without its models. Requests for it are held in the
// ingress, so limits, deadlines and cancellation apply to them. The cleanup thread loads the
// models, one deployment at a time. A request that is held after the load was asked for is started
// or ended by that load: `loading` is reset before the held requests are released. A held request
// is an open one, so the deployment stays loaded until it has started and ended.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/engine_impl.h"
#include "engine/sched/admission_queue.h"

namespace tandem {
namespace {

Duration idle_limit(const Deployment& d) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(d.config.unload_after_idle_seconds));
}

// Adapters that calls have loaded would be lost.
bool has_added_adapters(const Deployment& d) {
  return !std::ranges::all_of(d.adapters->all(), [](const AdapterRef& a) { return a->pinned; });
}

}  // namespace

Engine::IdleUnloads Engine::unload_idle() {
  Impl& e = *impl_;
  IdleUnloads out;
  if (e.draining.load()) return out;  // also while a load is under way
  const MutexLock lock(&e.changes);
  if (e.closing) return out;
  const TimePoint now = e.idle_clock->now();
  const std::shared_ptr<const DeploymentTable> all = e.deployments();
  for (const DeploymentRef& d : *all) {
    const Duration limit = idle_limit(*d);
    if (limit <= Duration::zero()) continue;
    const std::optional<TimePoint> since = d->open->idle_since();
    const bool may = !d->unloaded && since.has_value() && !has_added_adapters(*d);
    if (may && *since + limit <= now) {
      e.set_aside(d);
      out.names.push_back(d->name);
    }
    const bool later = may && *since + limit > now;
    out.next = std::min(out.next, (later ? *since : now) + limit);
  }
  return out;
}

void Engine::Impl::set_aside(const DeploymentRef& idle) {
  HiddenStatesByModel hidden;
  for (const auto& [name, model] : idle->models) hidden[name] = devices->hidden_states_of(name);
  const auto has_budget = [this](const LoadedModel& model) {
    if (model.config.fake) return true;
    return std::ranges::all_of(model.instances(), [this](const LoadedModel* m) {
      return config.devices[m->device.index()].memory_bytes > 0;
    });
  };
  if (exchange(idle, shared(idle->without_models(std::move(hidden), has_budget)))) {
    idle->counts->idle_unloads.add();
  }
}

void Engine::Impl::load_for_held(const DeploymentRef& unloaded) {
  if (unloaded->unloaded->loading.exchange(true)) return;
  cleanup.post([this, unloaded] { (void)load_again(unloaded); });
}

absl::Status Engine::Impl::load_again(const DeploymentRef& asked) {
  const std::string& name = asked->name;
  const MutexLock lock(&changes);
  if (closing) return shutting_down();  // the ingress ends its requests with it
  const std::shared_ptr<const DeploymentTable> all = deployments();
  // It may have been loaded and unloaded since a request found it.
  const auto now = std::ranges::find(*all, name, [](const DeploymentRef& d) { return d->name; });
  absl::Status status;
  if (now != all->end() && (*now)->unloaded) {
    const Deployment& d = **now;
    free_unused_models();
    const DeploymentLoad load{.models = d.unloaded->models,
                              .deployment = d.config,
                              .replace = true,
                              .progress = progress};
    absl::StatusOr<DeploymentRef> built = build(load, &d);
    status = built.status();
    if (built.ok()) {
      exchange(*now, *std::move(built));  // unless a call has unloaded it meanwhile
      if (progress) progress(absl::StrCat(name, ": loaded again"));
    } else {
      d.counts->failed_loads.add();
      free_unused_models();
    }
    d.unloaded->loading.store(false);
  }
  asked->unloaded->loading.store(false);
  if (status.ok()) {
    ingress.release(name);
    return status;
  }
  const std::string why = absl::StrCat("model ", quote_value(name),
                                       " could not be loaded: ", std::string(status.message()));
  if (progress) progress(why);
  status =
      with_retry_hint(with_reason(absl::UnavailableError(why), "LOAD_FAILED"), loop->retry_hint());
  ingress.fail(name, status);
  return status;
}

}  // namespace tandem
