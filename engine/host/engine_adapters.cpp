// LoRA adapters that come and go while the engine runs.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/host/config/config_models.h"
#include "engine/host/engine_impl.h"

namespace tandem {
namespace {

ModelSeries* series_of(Metrics& metrics, const LoadedModel& model) {
  for (ModelSeries& s : metrics.models) {
    if (s.model == model.config.name && s.device == model.config.device) return &s;
  }
  return nullptr;
}

absl::Status takes_adapters(const Deployment& d) {
  const LoadedModel& large = *d.large;
  if (large.encoder == nullptr && !large.shape.embeds_only) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("model: ", quote_value(d.name), ", whose model ", large.config.name,
                   large.encoder ? " has an encoder" : " only embeds", "; allowed: decoders"));
}

}  // namespace

absl::StatusOr<DeploymentRef> Engine::Impl::only_deployment(absl::string_view model) const {
  std::vector<std::string> names;
  const auto all = deployments();
  for (const DeploymentRef& d : *all) {
    if (d->name == model || (model.empty() && all->size() == 1)) return d;
    names.push_back(quote_value(d->name));
  }
  const std::string known = absl::StrJoin(names, ", ");
  if (model.empty()) return out_of_range("model", "unset", known);
  return with_reason(
      absl::NotFoundError(absl::StrCat("model: ", quote_value(model), "; known: ", known)),
      "MODEL_NOT_FOUND");
}

void Engine::Impl::free_adapter(const LoadedModel& large, const DeploymentAdapter& adapter) {
  std::vector<ModelId> models;
  for (const LoadedModel* m : large.instances()) {
    models.push_back(m->id);
    devices->unload_lora(*m, adapter.id);
    if (ModelSeries* s = series_of(metrics, *m)) {
      s->weight_bytes.add(-static_cast<double>(adapter.bytes));
    }
  }
  loop->forget_lora(std::move(models), adapter.id);
}

absl::Status Engine::load_adapter(const AdapterLoad& load) {
  Impl& e = *impl_;
  if (e.draining.load()) {
    return with_reason(absl::UnavailableError("the server is draining"), "DRAINING");
  }
  TANDEM_ASSIGN_OR_RETURN(DeploymentRef found, e.only_deployment(load.model));
  if (found->unloaded) {
    TANDEM_RETURN_IF_ERROR(e.load_again(found));
    TANDEM_ASSIGN_OR_RETURN(found, e.only_deployment(load.model));
    if (found->unloaded) return absl::UnavailableError("the deployment was unloaded; try again");
  }
  const Deployment& d = *found;
  TANDEM_RETURN_IF_ERROR(takes_adapters(d));
  if (!valid_name(load.name)) return out_of_range("adapter", quote_value(load.name), kNameRule);
  if (e.only_deployment(load.name).ok()) {
    return out_of_range("adapter", quote_value(load.name), "a name that no deployment has");
  }
  const MutexLock lock(&e.adapter_loads);
  TANDEM_RETURN_IF_ERROR(d.adapters->check_name(load.name, load.replace));

  // The figures come from headers. All that can be wrong with the numbers shows before other
  // adapters make room.
  const std::vector<const LoadedModel*> instances = d.large->instances();
  std::vector<std::unique_ptr<OpenLora>> opened;
  int64_t bytes = 0;
  for (const LoadedModel* m : instances) {
    TANDEM_ASSIGN_OR_RETURN(opened.emplace_back(), e.devices->open_lora(*m, load.path));
    bytes = std::max(bytes, opened.back()->bytes());
  }
  TANDEM_RETURN_IF_ERROR(d.adapters->check_room(load.name, bytes));
  TANDEM_RETURN_IF_ERROR(opened.front()->read());
  TANDEM_ASSIGN_OR_RETURN(AdapterTable::Room room, d.adapters->make_room(load.name, bytes));

  const auto [next, fresh] =
      e.next_lora.try_emplace(d.large->id, static_cast<int64_t>(d.large->config.loras.size()));
  const LoraId id(next->second++);
  for (size_t i = 0; i < instances.size(); ++i) {
    absl::Status loaded = i == 0 ? absl::OkStatus() : opened[i]->read();
    if (loaded.ok()) loaded = opened[i]->load(id);
    if (loaded.ok()) continue;
    while (i-- > 0) e.devices->unload_lora(*instances[i], id);
    return loaded;
  }
  for (const LoadedModel* m : instances) {
    if (ModelSeries* s = series_of(e.metrics, *m)) s->weight_bytes.add(static_cast<double>(bytes));
  }
  d.adapters->add({.name = load.name,
                   .id = id,
                   .path = load.path,
                   .rank = opened.front()->rank(),
                   .bytes = bytes,
                   .pinned = false,
                   .acceptance_stats = std::make_shared<AcceptanceStats>(),
                   .conditioned_stats = std::make_shared<AcceptanceStats>(),
                   .series = e.metrics.adapters.open(d.name, load.name)},
                  std::move(room),
                  [impl = &e, large = d.leases.at(d.config.large)](
                      const DeploymentAdapter& adapter) { impl->free_adapter(*large, adapter); });
  return absl::OkStatus();
}

absl::Status Engine::unload_adapter(absl::string_view model, const std::string& name) {
  if (!model.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const DeploymentRef d, impl_->only_deployment(model));
    return d->adapters->remove(name);
  }
  std::vector<DeploymentRef> owners;
  std::vector<std::string> known, of;
  const auto all = impl_->deployments();
  for (const DeploymentRef& d : *all) {
    for (const std::string& adapter : d->adapters->names()) {
      known.push_back(quote_value(adapter));
      if (adapter != name) continue;
      owners.push_back(d);
      of.push_back(quote_value(d->name));
    }
  }
  if (owners.size() == 1) return owners.front()->adapters->remove(name);
  if (!owners.empty()) return out_of_range("model", "unset", absl::StrJoin(of, ", "));
  return with_reason(absl::NotFoundError(absl::StrCat(
                         "adapter: ", quote_value(name),
                         "; known: ", known.empty() ? "none" : absl::StrJoin(known, ", "))),
                     "ADAPTER_NOT_LOADED");
}

}  // namespace tandem
