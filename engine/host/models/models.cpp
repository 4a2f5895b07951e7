#include "engine/host/models/models.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Gives each CPU device its thread team. Teams without a configured size share the processors.
std::vector<DeviceConfig> with_teams(std::vector<DeviceConfig> devices) {
  const auto on_cpu = [](const DeviceConfig& d) { return d.kind == DeviceKind::kCpu; };
  const auto cpus = static_cast<int>(std::ranges::count_if(devices, on_cpu));
  const int share =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, cpus));
  int taken = 0;
  for (DeviceConfig& d : devices) {
    if (!on_cpu(d)) continue;
    if (d.threads == 0) d.threads = share;
    d.first_cpu = std::exchange(taken, taken + d.threads);
  }
  return devices;
}

bool has_shard_on(const EngineConfig& config, const std::string& device) {
  return std::ranges::any_of(config.models, [&](const ModelConfig& m) {
    return std::ranges::find(m.shards, device, &ShardConfig::device) != m.shards.end();
  });
}

}  // namespace

LoadedModel& ModelTable::register_model(LoadedModel& model) {
  auto place = std::ranges::find(all_, nullptr);
  if (place == all_.end()) place = all_.insert(all_.end(), nullptr);
  model.id = ModelId(place - all_.begin());
  *place = &model;
  return model;
}

std::vector<LoadedModel*> ModelTable::add_all(const std::vector<ModelConfig>& models) {
  std::vector<LoadedModel*> added;
  for (const ModelConfig& m : models) {
    added.push_back(&register_model(named_[m.name]));
    added.back()->config = m;
  }
  for (const ModelConfig& m : models) {
    LoadedModel& first = named_.at(m.name);
    for (const std::string& device : m.replicas) {
      LoadedModel& replica = register_model(others_.emplace_back());
      added.push_back(&replica);
      replica.config = m;
      replica.config.device = device;
      replica.config.replicas.clear();
      replica.is_replica = true;
      first.replicas.push_back(&replica);
    }
  }
  return added;
}

LoadedModel& ModelTable::add_encoder(LoadedModel& decoder, Token start_token) {
  LoadedModel& encoder = register_model(others_.emplace_back());
  encoder.device = decoder.device;
  encoder.config = decoder.config;
  encoder.config.name = absl::StrCat(decoder.config.name, ":encoder");
  decoder.encoder = &encoder;
  decoder.start_token = start_token;
  return encoder;
}

void ModelTable::link_encoders(const std::vector<LoadedModel*>& models) {
  for (const LoadedModel* first : models) {
    if (first->encoder == nullptr || first->is_replica) continue;
    for (const LoadedModel* replica : first->replicas) {
      all_[first->encoder->id.index()]->replicas.push_back(replica->encoder);
    }
  }
}

void ModelTable::remove(const std::string& name) {
  const std::vector<LoadedModel*> gone = parts(name);
  for (const LoadedModel* part : gone) all_[part->id.index()] = nullptr;
  others_.remove_if([&](const LoadedModel& m) { return std::ranges::count(gone, &m) > 0; });
  named_.erase(name);
}

std::vector<LoadedModel*> ModelTable::parts(const std::string& name) const {
  std::vector<LoadedModel*> parts;
  const std::vector<const LoadedModel*> instances = named_.at(name).instances();
  for (const LoadedModel* m : instances) {
    if (m->encoder != nullptr) parts.push_back(all_[m->encoder->id.index()]);
  }
  for (const LoadedModel* m : instances) parts.push_back(all_[m->id.index()]);
  return parts;
}

std::vector<LoadedModel*> ModelTable::all() const {
  std::vector<LoadedModel*> all = all_;
  std::erase(all, nullptr);
  return all;
}

HiddenStates LoadContext::hidden_states_of(const LoadedModel& model) const {
  const auto known = hidden_states.find(model.config.name);
  return known == hidden_states.end() ? HiddenStates() : known->second;
}

Devices::Devices(const EngineConfig& config, const Clock* clock)
    : config_(config),
      devices_(with_teams(config.devices)),
      fakes_(make_fake_loader(clock)),
      weights_(make_weights_loader()) {}

absl::StatusOr<std::unique_ptr<Devices>> Devices::load(const EngineConfig& config,
                                                       const HiddenStatesByModel& hidden_states,
                                                       const Clock* clock,
                                                       const Progress& progress) {
  std::unique_ptr<Devices> devices(new Devices(config, clock));
  devices->hidden_states_ = hidden_states;
  TANDEM_RETURN_IF_ERROR(devices->load_models(devices->context(hidden_states, progress, false)));
  return devices;
}

LoadContext Devices::context(const HiddenStatesByModel& hidden_states, const Progress& progress,
                             bool running) {
  return {config_, devices_, hidden_states, progress, &models_, running};
}

absl::Status Devices::load_models(const LoadContext& context) {
  // Loading adds encoders.
  const std::vector<LoadedModel*> configured = models_.add_all(config_.models);
  for (size_t d = 0; d < devices_.size(); ++d) {
    TANDEM_RETURN_IF_ERROR(load_onto(d, configured, context));
  }
  models_.link_encoders(configured);
  TANDEM_RETURN_IF_ERROR(fakes_->finish(context));
  return weights_->finish(context);
}

// Those of `models` that the device has.
absl::Status Devices::load_onto(size_t device, const std::vector<LoadedModel*>& models,
                                const LoadContext& context) {
  const DeviceConfig& config = devices_[device];
  std::vector<LoadedModel*> here;
  for (LoadedModel* m : models) {
    if (m->config.device != config.name()) continue;
    m->device = DeviceId(static_cast<int64_t>(device));
    here.push_back(m);
  }
  const auto fakes = static_cast<size_t>(
      std::ranges::count_if(here, [](const LoadedModel* m) { return m->config.fake.has_value(); }));
  ModelLoader* const loader = fakes > 0 ? fakes_.get() : weights_.get();
  const bool mixed = fakes > 0 && (fakes < here.size() || has_shard_on(config_, config.name()));
  if (context.running && here.empty()) return absl::OkStatus();
  if (mixed || (context.running && loaders_[device] != loader)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device ", config.name(), ": has models with weights and fake ones; allowed: one kind"));
  }
  TANDEM_ASSIGN_OR_RETURN(Backend* const backend, loader->load(context, config, here));
  if (context.running) return absl::OkStatus();
  backends_.push_back(backend);
  loaders_.push_back(loader);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LoadedModel*>> Devices::add(const std::vector<ModelConfig>& models,
                                                       const HiddenStatesByModel& hidden_states,
                                                       const Progress& progress) {
  const LoadContext context = this->context(hidden_states, progress, true);
  const std::vector<LoadedModel*> added = models_.add_all(models);
  absl::Status status;
  for (size_t d = 0; d < devices_.size() && status.ok(); ++d) {
    status = load_onto(d, added, context);
  }
  if (!status.ok()) {
    for (const ModelConfig& m : models) remove(m.name);
    return status;
  }
  models_.link_encoders(added);
  std::vector<LoadedModel*> all;
  for (const ModelConfig& m : models) {
    hidden_states_[m.name] = context.hidden_states_of(models_.by_name().at(m.name));
    const std::vector<LoadedModel*> parts = models_.parts(m.name);
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

void Devices::remove(const std::string& name) {
  for (const LoadedModel* part : models_.parts(name)) loader_of(*part).unload(*part);
  models_.remove(name);
  hidden_states_.erase(name);
}

void Devices::set_configured_pages(const std::string& name, int64_t kv_pages) {
  for (LoadedModel* part : models_.parts(name)) part->config.kv_pages = kv_pages;
}

HiddenStates Devices::hidden_states_of(const std::string& model) const {
  const auto known = hidden_states_.find(model);
  return known == hidden_states_.end() ? HiddenStates() : known->second;
}

absl::Status Devices::check_use(const HiddenStatesByModel& wanted) const {
  for (const auto& [name, use] : wanted) {
    if (!models_.by_name().contains(name)) continue;
    const HiddenStates has = hidden_states_of(name);
    if ((use.retain_top && !has.retain_top) || (use.condition && !has.condition)) {
      return absl::FailedPreconditionError(
          absl::StrCat("model ", name,
                       ": loaded without the hidden states that a method of the "
                       "deployment needs; allowed: the same files under another name"));
    }
  }
  return absl::OkStatus();
}

absl::Status check_files(const EngineConfig& config) {
  const std::unique_ptr<ModelLoader> weights = make_weights_loader();
  for (const ModelConfig& model : config.models) {
    if (!model.fake) TANDEM_RETURN_IF_ERROR(weights->check(model));
  }
  return absl::OkStatus();
}

}  // namespace tandem
