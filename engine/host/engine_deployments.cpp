// Deployments and models that come and go while the engine runs.
//
// A deployment is immutable, and a request keeps the one that it was accepted with. The table of
// deployments is replaced as a whole. A deployment keeps its models by leases. When its last
// reference is dropped, the cleanup thread frees it, and then the models whose leases have expired:
// the loop forgets them first, then their devices.
#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config_models.h"
#include "engine/host/engine_impl.h"
#include "engine/host/methods/declare.h"

namespace tandem {
namespace {

// Between two attempts to end requests that were on their way to the loop.
constexpr std::chrono::milliseconds kEndAgain{50};

auto fields_of(const FakeModelConfig& m) {
  return std::tie(m.vocab_size, m.layers, m.max_positions, m.pass_seconds, m.row_seconds, m.seed,
                  m.trace_file, m.check_memory, m.answers, m.answer_after, m.chat_template);
}

bool same_files(const std::vector<ExtraConfig>& a, const std::vector<ExtraConfig>& b) {
  return std::ranges::equal(a, b, [](const ExtraConfig& x, const ExtraConfig& y) {
    return x.name == y.name && x.path == y.path;
  });
}

// LoRA adapters of a definition are added at load, so those of a shared model may be fewer.
bool same_model(const ModelConfig& a, const ModelConfig& b) {
  const auto fields = [](const ModelConfig& m) {
    return std::tie(m.name, m.path, m.device, m.replicas, m.dtype, m.page_rows, m.kv_pages,
                    m.prefix_cache, m.kv_dtype, m.adapter_dtype, m.layers);
  };
  if (fields(a) != fields(b) || a.fake.has_value() != b.fake.has_value()) return false;
  if (a.fake && fields_of(*a.fake) != fields_of(*b.fake)) return false;
  return same_files(a.extras, b.extras) && (b.loras.empty() || same_files(a.loras, b.loras));
}

absl::Status unknown_deployment(const std::string& name, const DeploymentTable& table) {
  std::vector<std::string> known;
  for (const DeploymentRef& d : table) known.push_back(quote_value(d->name));
  return with_reason(absl::NotFoundError(absl::StrCat(
                         "deployment: ", quote_value(name),
                         "; known: ", known.empty() ? "none" : absl::StrJoin(known, ", "))),
                     "MODEL_NOT_FOUND");
}

absl::Status taken(const std::string& field, const std::string& name, absl::string_view allowed) {
  return with_reason(absl::AlreadyExistsError(absl::StrCat(
                         field, ": ", quote_value(name), ", which is loaded; allowed: ", allowed)),
                     "DEPLOYMENT_EXISTS");
}

absl::Status being_unloaded(const std::string& name) {
  return with_reason(
      absl::UnavailableError(absl::StrCat("model ", quote_value(name), " is being unloaded")),
      "DRAINING");
}

// Calls start(done), and waits until the loop has called `done`.
template <class F>
void wait_for_loop(const F& start) {
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> ended = done->get_future();
  start([done] { done->set_value(); });
  ended.wait();
}

}  // namespace

LoopModel Engine::Impl::register_model(const LoadedModel& m) {
  std::shared_ptr<ModelSeries> series = metrics.models.open(m.config.name, m.config.device);
  series->page_rows = m.config.page_rows;
  series->weight_bytes.set(static_cast<double>(m.shape.weight_bytes));
  series->kv_bytes.set(static_cast<double>(m.shape.page_bytes * m.pool.pages));
  LoopModel model;
  model.id = m.id;
  model.device = m.device;
  model.series = series.get();
  model.prefix_cache = m.config.prefix_cache;
  model.prefix_listener = prefix_listener;
  model.name = m.config.name;
  model.instance = prefix_instances++;
  model_series[m.id] = std::move(series);
  return model;
}

std::shared_ptr<const LoadedModel> Engine::Impl::lease(const std::string& model) {
  std::weak_ptr<const LoadedModel>& known = leases[model];
  if (std::shared_ptr<const LoadedModel> same = known.lock()) return same;
  std::shared_ptr<const LoadedModel> fresh(&devices->models().by_name().at(model),
                                           [this](const LoadedModel*) {
                                             cleanup.post([this] {
                                               const MutexLock lock(&changes);
                                               free_unused_models();
                                             });
                                           });
  known = fresh;
  return fresh;
}

DeploymentRef Engine::Impl::publishable(Deployment made) {
  for (const auto& [name, model] : made.models) made.leases[name] = lease(name);
  made.grammars = &grammars;
  made.lost = [this](DeviceId device) { return lost(device); };
  return shared(std::move(made));
}

DeploymentRef Engine::Impl::shared(Deployment made) {
  return {new Deployment(std::move(made)), [this](const Deployment* old) {
            cleanup.post([this, old] {
              const std::shared_ptr<std::promise<void>> gone = old->gone;
              delete old;
              {
                const MutexLock lock(&changes);
                free_unused_models();
              }
              gone->set_value();
            });
          }};
}

void Engine::Impl::free_unused_models() {
  if (closing || loop == nullptr) return;  // null: the start has failed
  std::erase_if(leases, [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes) {
    if (!entry.second.expired()) return false;
    std::vector<ModelId> ids;
    for (const LoadedModel* part : devices->models().parts(entry.first)) {
      ids.push_back(part->id);
      if (prefixes == nullptr) continue;
      if (const absl::Status saved = prefixes->forget(*part, loop.get()); !saved.ok() && progress) {
        progress(absl::StrCat("saved prefixes: ", saved.message()));
      }
    }
    wait_for_loop([&](std::function<void()> done) { loop->remove_models(ids, std::move(done)); });
    devices->remove(entry.first);
    const MutexLock lock(&adapter_loads);
    for (const ModelId id : ids) {
      model_series.erase(id);
      next_lora.erase(id);
    }
    return true;
  });
}

// What can be checked before anything is loaded.
absl::Status Engine::Impl::check_load(const DeploymentLoad& load,
                                      const UnloadedDeployment* again) const {
  const DeploymentConfig& config = load.deployment;
  const std::shared_ptr<const DeploymentTable> all = deployments();
  if (!valid_name(config.name)) {
    return out_of_range("deployment.name", quote_value(config.name), kNameRule);
  }
  const bool known =
      std::ranges::any_of(*all, [&](const DeploymentRef& d) { return d->name == config.name; });
  if (load.replace && !known) return unknown_deployment(config.name, *all);
  if (!load.replace && known) {
    return taken("deployment.name", config.name, "another name, or ReplaceDeployment");
  }
  for (const DeploymentRef& d : *all) {
    if (d->name != config.name && d->adapters->find(config.name) != nullptr) {
      return out_of_range("deployment.name", quote_value(config.name),
                          "a name that no adapter has");
    }
    for (const AdapterConfig& adapter : config.adapters) {
      if (adapter.name != d->name) continue;
      return out_of_range("deployment.adapters", quote_value(adapter.name),
                          "names that no deployment has");
    }
  }
  for (const ModelConfig& model : load.models) {
    for (const DeploymentRef& d : *all) {
      if (!d->unloaded || d->unloaded.get() == again || (load.replace && d->name == config.name)) {
        continue;
      }
      for (const ModelConfig& theirs : d->unloaded->models) {
        const bool same = same_model(theirs, model) && same_files(theirs.loras, model.loras);
        if (theirs.name != model.name || same) continue;
        return taken("models", model.name,
                     absl::StrCat("the same definition as in the unloaded deployment ",
                                  quote_value(d->name), ", or another name"));
      }
    }
    const auto loaded = devices->models().by_name().find(model.name);
    if (loaded != devices->models().by_name().end()) {
      if (same_model(loaded->second.config, model)) continue;
      return taken("models", model.name, "the same definition, or another name");
    }
    if (!model.shards.empty()) {
      return out_of_range(absl::StrCat("models[", model.name, "].shards"), model.shards.size(),
                          "none for a model that is loaded at run time");
    }
  }
  for (const auto& [field, name] : {std::pair("deployment.large", &config.large),
                                    std::pair("deployment.small", &config.small)}) {
    const bool unset = name->empty() && name == &config.small;
    if (unset || devices->models().by_name().contains(*name) ||
        std::ranges::find(load.models, *name, &ModelConfig::name) != load.models.end()) {
      continue;
    }
    return out_of_range(field, quote_value(*name), "a model of the request, or one that is loaded");
  }
  const auto large = devices->models().by_name().find(config.large);
  if (again == nullptr && large != devices->models().by_name().end() && !config.adapters.empty()) {
    return out_of_range(
        "deployment.adapters", config.adapters.size(),
        absl::StrCat("none, as ", config.large, " is loaded already; LoadAdapter adds them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeploymentRef> Engine::Impl::build(const DeploymentLoad& load,
                                                  const Deployment* again) {
  TANDEM_RETURN_IF_ERROR(check_load(load, again ? again->unloaded.get() : nullptr));
  EngineConfig alone;
  alone.deployments = {load.deployment};
  const HiddenStatesByModel hidden = again ? again->unloaded->hidden : hidden_states_of(alone);
  TANDEM_RETURN_IF_ERROR(devices->check_use(hidden));
  std::vector<ModelConfig> fresh;
  for (const ModelConfig& model : load.models) {
    if (devices->models().by_name().contains(model.name)) continue;
    fresh.push_back(model);
    if (!again) continue;
    const auto pages = again->unloaded->kv_pages.find(model.name);
    if (pages != again->unloaded->kv_pages.end()) fresh.back().kv_pages = pages->second;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<LoadedModel*> loaded,
                          devices->add(fresh, hidden, load.progress));
  // From here on, models without a deployment are freed by free_unused_models().
  std::vector<std::shared_ptr<const LoadedModel>> held;
  for (const ModelConfig& model : fresh) held.push_back(lease(model.name));
  if (again) {
    for (const ModelConfig& model : load.models) {
      devices->set_configured_pages(model.name, model.kv_pages);
    }
  }
  std::map<ModelId, LoopModel> loop_models;
  for (const LoadedModel* m : loaded) loop_models[m->id] = register_model(*m);
  for (const LoadedModel* m : loaded) {
    for (const LoadedModel* r : m->replicas) loop_models[r->id].replica_of = m->id;
  }
  std::vector<LoopModel> added;
  for (const auto& [id, model] : loop_models) added.push_back(model);
  wait_for_loop([&](std::function<void()> done) { loop->add_models(added, std::move(done)); });
  for (const LoadedModel* m : loaded) {
    if (prefixes == nullptr) continue;
    const absl::Status read = prefixes->add(*m, load.progress, loop.get());
    if (!read.ok() && load.progress) {
      load.progress(absl::StrCat("saved prefixes: ", read.message()));
    }
  }
  for (const LoadedModel* m : loaded) {
    if (!m->shape.encodes) TANDEM_RETURN_IF_ERROR(warm_up(*m));
  }
  TANDEM_ASSIGN_OR_RETURN(Deployment made, make_deployment(load.deployment, config.limits,
                                                           devices->models().by_name(), &metrics));
  for (const std::string& notice : made.notices) {
    if (load.progress) load.progress(notice);
  }
  made.open = std::make_shared<OpenRequests>(idle_clock);
  // Requests that wait for the name belong to the new deployment.
  DeploymentRef before;
  const std::shared_ptr<const DeploymentTable> all = deployments();
  for (const DeploymentRef& d : *all) {
    if (d->name == made.name && d->unloaded) before = d;
  }
  if (before) made.open = before->open;
  if (again) {
    made.counts = again->counts;
    made.acceptance_stats = again->acceptance_stats;
    made.conditioned_stats = again->conditioned_stats;
    made.history = again->history;
    made.adapters = again->adapters;
  }
  made.counts->loads.add();
  return publishable(std::move(made));
}

bool Engine::Impl::exchange(const DeploymentRef& old, DeploymentRef next) {
  const MutexLock lock(&table_mutex);
  DeploymentTable changed = *table;
  const auto place = std::ranges::find(changed, old);
  if (place == changed.end()) return false;
  *place = std::move(next);
  table = std::make_shared<const DeploymentTable>(std::move(changed));
  return true;
}

DeploymentRef Engine::Impl::exchange(const std::string& name, DeploymentRef next) {
  DeploymentRef old;
  const MutexLock lock(&table_mutex);
  DeploymentTable changed = *table;
  const auto place =
      std::ranges::find_if(changed, [&](const DeploymentRef& d) { return d->name == name; });
  if (place != changed.end()) {
    old = *place;
    if (next != nullptr) {
      *place = std::move(next);
    } else {
      changed.erase(place);
    }
    std::erase_if(drained, [](const auto& gone) { return gone.expired(); });
    if (!old->unloaded) drained.push_back(old);
  } else if (next != nullptr) {
    changed.push_back(std::move(next));
  }
  table = std::make_shared<const DeploymentTable>(std::move(changed));
  return old;
}

absl::Status Engine::load_deployment(const DeploymentLoad& load) {
  Impl& e = *impl_;
  const MutexLock lock(&e.changes);
  if (e.draining.load() || e.closing) {
    return with_reason(absl::UnavailableError("the server is draining"), "DRAINING");
  }
  e.free_unused_models();
  absl::StatusOr<DeploymentRef> built = e.build(load);
  if (!built.ok()) {
    e.free_unused_models();
    const bool full = absl::IsResourceExhausted(built.status());
    return full ? with_reason(built.status(), "DEPLOYMENT_MEMORY") : built.status();
  }
  const DeploymentRef old = e.exchange(load.deployment.name, *std::move(built));
  if (old && old->unloaded) e.ingress.release(old->name);
  return absl::OkStatus();
}

absl::Status Engine::unload_deployment(const std::string& name, std::optional<Duration> limit,
                                       const std::function<void()>& removed) {
  Impl& e = *impl_;
  DeploymentRef old = e.exchange(name, nullptr);
  if (old == nullptr) return unknown_deployment(name, *e.deployments());
  if (removed) removed();
  if (old->unloaded) e.ingress.fail(name, being_unloaded(name));
  std::future<void> gone = old->gone->get_future();
  const std::shared_ptr<OpenRequests> open = old->open;
  old = nullptr;
  if (!limit) {
    gone.wait();
    return absl::OkStatus();
  }
  for (auto left = *limit; gone.wait_for(left) != std::future_status::ready; left = kEndAgain) {
    for (const RequestId id : open->ids()) e.end_request(id, being_unloaded(name));
  }
  return absl::OkStatus();
}

std::vector<ModelConfig> Engine::loaded_models() const {
  const MutexLock lock(&impl_->changes);
  std::vector<ModelConfig> models;
  for (const auto& [name, model] : impl_->devices->models().by_name()) {
    models.push_back(model.config);
  }
  return models;
}

const std::vector<DeviceConfig>& Engine::device_configs() const { return impl_->config.devices; }

std::vector<DeploymentState> Engine::deployment_states() const {
  DeploymentTable all;
  size_t serving = 0;
  {
    const MutexLock lock(&impl_->table_mutex);
    all = *impl_->table;
    serving = all.size();
    for (const std::weak_ptr<const Deployment>& one : impl_->drained) {
      if (DeploymentRef old = one.lock()) all.push_back(std::move(old));
    }
  }
  std::vector<DeploymentState> states;
  for (size_t i = 0; i < all.size(); ++i) {
    const DeploymentCounts& counts = *all[i]->counts;
    states.push_back({.info = all[i]->info(),
                      .draining = i >= serving,
                      .open_requests = static_cast<int64_t>(all[i]->open->ids().size()),
                      .loads = counts.loads.value(),
                      .idle_unloads = counts.idle_unloads.value(),
                      .failed_loads = counts.failed_loads.value()});
  }
  return states;
}

}  // namespace tandem
