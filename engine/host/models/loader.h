// Loads models onto devices. There is one implementation for fake models and one for weights.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/host/models/loaded_model.h"
#include "engine/host/models/pools.h"
#include "engine/pass/backend.h"

namespace tandem {

using Progress = std::function<void(absl::string_view)>;  // takes one line; may be empty

// Every model of an engine, by id and by name. Addresses are stable.
class ModelTable {
 public:
  // Adds models and their replicas, and returns them. REQUIRES: the names are new
  std::vector<LoadedModel*> add_all(const std::vector<ModelConfig>& models);
  LoadedModel& add_encoder(LoadedModel& decoder, Token start_token);
  // Encoders of replicas become replicas of the first model's encoder. Call once for each model,
  // after loading.
  void link_encoders(const std::vector<LoadedModel*>& models);
  // Removes a model with its parts. Their ids may be used again.
  void remove(const std::string& name);

  // Without replicas and encoders.
  const std::map<std::string, LoadedModel>& by_name() const { return named_; }
  // The model, its replicas and their encoders; encoders first.
  std::vector<LoadedModel*> parts(const std::string& name) const;
  std::vector<LoadedModel*> all() const;  // by id

 private:
  LoadedModel& register_model(LoadedModel& model);

  std::map<std::string, LoadedModel> named_;
  std::list<LoadedModel> others_;  // replicas and encoders
  std::vector<LoadedModel*> all_;  // by id; null: free
};

struct LoadContext {
  const EngineConfig& config;
  std::vector<DeviceConfig> devices;  // as in `config`, with the thread team of each CPU device
  const HiddenStatesByModel& hidden_states;
  const Progress& progress;
  ModelTable* models;
  bool running = false;  // batches of other models run

  void report(absl::string_view line) const {
    if (progress) progress(line);
  }
  HiddenStates hidden_states_of(const LoadedModel& model) const;
};

// A LoRA adapter whose file headers have been checked.
class OpenLora {
 public:
  virtual ~OpenLora() = default;
  virtual int rank() const = 0;       // the largest of its layers
  virtual int64_t bytes() const = 0;  // that load() takes
  // Reads and checks all numbers. They stay in memory until load().
  virtual absl::Status read() = 0;
  // Loads it as `id`, which the model never had. REQUIRES: read() was OK
  virtual absl::Status load(LoraId id) = 0;
};

// Owns the backends that it makes.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;

  // Reads the small files of a model: configuration, tokenizer, chat template, GGUF header.
  virtual absl::Status check(const ModelConfig& model) const = 0;
  // Loads `models` onto a device and sizes their pools. Errors name the model and the file or
  // field. Further calls for a device add models to it, without shards. RESOURCE_EXHAUSTED, with
  // the figures: the device has too little memory next to its other models.
  virtual absl::StatusOr<Backend*> load(const LoadContext& context, const DeviceConfig& device,
                                        const std::vector<LoadedModel*>& models) = 0;
  // Called once, after the last device.
  virtual absl::Status finish(const LoadContext& context) = 0;
  // Frees a model, also one whose loading has failed. Models that are not loaded are ignored.
  // REQUIRES: no batch names it
  virtual void unload(const LoadedModel& model) = 0;

  // LoRA adapters of a loaded model, while batches run. Both are thread-safe.
  // NOT_FOUND, INVALID_ARGUMENT: as for adapters of the configuration.
  virtual absl::StatusOr<std::unique_ptr<OpenLora>> open_lora(const LoadedModel& model,
                                                              const std::string& path) = 0;
  virtual void unload_lora(const LoadedModel& model, LoraId id) = 0;  // REQUIRES: no batch names it
};

// `clock` outlives the loader.
std::unique_ptr<ModelLoader> make_fake_loader(const Clock* clock);
// Weights, on LibTorch devices. A build without LibTorch links a loader that refuses to load.
std::unique_ptr<ModelLoader> make_weights_loader();

}  // namespace tandem
