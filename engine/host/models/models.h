// The devices of an engine and the models on them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/host/models/loader.h"
#include "engine/pass/backend.h"

namespace tandem {

class Devices {
 public:
  // Loads every model of `config`, with a line of progress for each. Errors name the model and the
  // file or field. `config` and `clock` outlive the result.
  static absl::StatusOr<std::unique_ptr<Devices>> load(const EngineConfig& config,
                                                       const HiddenStatesByModel& hidden_states,
                                                       const Clock* clock,
                                                       const Progress& progress);

  // Loads more models while batches run, all or none. Returns them with replicas and encoders.
  // INVALID_ARGUMENT: a device has models of another kind. Others as ModelLoader::load().
  absl::StatusOr<std::vector<LoadedModel*>> add(const std::vector<ModelConfig>& models,
                                                const HiddenStatesByModel& hidden_states,
                                                const Progress& progress);
  // Frees a model with its parts. REQUIRES: no batch names them
  void remove(const std::string& name);
  // Restores the pages of a model's definition, which another number was loaded with.
  void set_configured_pages(const std::string& name, int64_t kv_pages);
  // FAILED_PRECONDITION: loaded models do not keep the hidden states that `wanted` needs.
  absl::Status check_use(const HiddenStatesByModel& wanted) const;
  // Of a loaded model.
  HiddenStates hidden_states_of(const std::string& model) const;

  const std::vector<Backend*>& backends() const { return backends_; }  // by DeviceId
  const ModelTable& models() const { return models_; }
  // As those of ModelLoader.
  absl::StatusOr<std::unique_ptr<OpenLora>> open_lora(const LoadedModel& model,
                                                      const std::string& path) {
    return loader_of(model).open_lora(model, path);
  }
  void unload_lora(const LoadedModel& model, LoraId id) { loader_of(model).unload_lora(model, id); }

 private:
  Devices(const EngineConfig& config, const Clock* clock);
  LoadContext context(const HiddenStatesByModel& hidden_states, const Progress& progress,
                      bool running);
  absl::Status load_models(const LoadContext& context);
  absl::Status load_onto(size_t device, const std::vector<LoadedModel*>& models,
                         const LoadContext& context);
  ModelLoader& loader_of(const LoadedModel& model) {
    return model.config.fake ? *fakes_ : *weights_;
  }

  const EngineConfig& config_;
  const std::vector<DeviceConfig> devices_;  // with thread teams
  HiddenStatesByModel hidden_states_;        // of the loaded models
  ModelTable models_;
  const std::unique_ptr<ModelLoader> fakes_, weights_;
  std::vector<ModelLoader*> loaders_;  // by DeviceId, as the next one
  std::vector<Backend*> backends_;
};

// Reads the small files of every model (ModelLoader::check), no weights. Errors are those of
// load().
absl::Status check_files(const EngineConfig& config);

}  // namespace tandem
