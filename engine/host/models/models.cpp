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
  model.id = ModelId(static_cast<int64_t>(all_.size()));
  all_.push_back(&model);
  return model;
}

void ModelTable::add_all(const std::vector<ModelConfig>& models) {
  for (const ModelConfig& m : models) register_model(named_[m.name]).config = m;
  for (const ModelConfig& m : models) {
    LoadedModel& first = named_.at(m.name);
    for (const std::string& device : m.replicas) {
      LoadedModel& replica = register_model(others_.emplace_back());
      replica.config = m;
      replica.config.device = device;
      replica.config.replicas.clear();
      replica.is_replica = true;
      first.replicas.push_back(&replica);
    }
  }
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

void ModelTable::link_encoders() {
  for (auto& [name, first] : named_) {
    if (first.encoder == nullptr) continue;
    for (const LoadedModel* replica : first.replicas) {
      all_[first.encoder->id.index()]->replicas.push_back(replica->encoder);
    }
  }
}

HiddenStates LoadContext::hidden_states_of(const LoadedModel& model) const {
  const auto known = hidden_states.find(model.config.name);
  return known == hidden_states.end() ? HiddenStates() : known->second;
}

Devices::Devices(const Clock* clock)
    : fakes_(make_fake_loader(clock)), weights_(make_weights_loader()) {}

absl::StatusOr<std::unique_ptr<Devices>> Devices::load(const EngineConfig& config,
                                                       const HiddenStatesByModel& hidden_states,
                                                       const Clock* clock,
                                                       const Progress& progress) {
  std::unique_ptr<Devices> devices(new Devices(clock));
  TANDEM_RETURN_IF_ERROR(devices->load_models(
      {config, with_teams(config.devices), hidden_states, progress, &devices->models_}));
  return devices;
}

absl::Status Devices::load_models(const LoadContext& context) {
  models_.add_all(context.config.models);
  const std::vector<LoadedModel*> configured = models_.all();  // loading adds encoders
  for (size_t d = 0; d < context.devices.size(); ++d) {
    const DeviceConfig& device = context.devices[d];
    std::vector<LoadedModel*> here;
    for (LoadedModel* m : configured) {
      if (m->config.device != device.name()) continue;
      m->device = DeviceId(static_cast<int64_t>(d));
      here.push_back(m);
    }
    const auto fakes = static_cast<size_t>(std::ranges::count_if(
        here, [](const LoadedModel* m) { return m->config.fake.has_value(); }));
    if (fakes > 0 && (fakes < here.size() || has_shard_on(context.config, device.name()))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device ", device.name(), ": has models with weights and fake ones; allowed: one kind"));
    }
    ModelLoader& loader = fakes > 0 ? *fakes_ : *weights_;
    TANDEM_ASSIGN_OR_RETURN(Backend* const backend, loader.load(context, device, here));
    backends_.push_back(backend);
  }
  models_.link_encoders();
  TANDEM_RETURN_IF_ERROR(fakes_->finish(context));
  return weights_->finish(context);
}

absl::Status check_files(const EngineConfig& config) {
  const std::unique_ptr<ModelLoader> weights = make_weights_loader();
  for (const ModelConfig& model : config.models) {
    if (!model.fake) TANDEM_RETURN_IF_ERROR(weights->check(model));
  }
  return absl::OkStatus();
}

}  // namespace tandem
