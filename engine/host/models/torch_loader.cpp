#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/backend/torch/device.h"
#include "engine/backend/torch/memory.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/tokenizer.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/hf/embedding_config.h"
#include "engine/backend/torch/weights/hf/generation_config.h"
#include "engine/backend/torch/weights/lora_file.h"
#include "engine/base/status.h"
#include "engine/host/models/loader.h"

namespace tandem {
namespace {

// Like Transformers, never bans an end token, whatever the file lists.
SamplingParams params_of(const GenerationDefaults& defaults, const std::vector<Token>& eos) {
  SamplingParams params = defaults.sampling;
  std::erase_if(params.bad_token_ids,
                [&](int64_t id) { return std::find(eos.begin(), eos.end(), id) != eos.end(); });
  return params;
}

// Tokenizer and chat template.
absl::Status load_text(const std::string& path, LoadedModel* model) {
  if (!is_gguf(path)) {
    TANDEM_ASSIGN_OR_RETURN(model->tokenizer, Tokenizer::load(path));
    TANDEM_ASSIGN_OR_RETURN(model->chat, ChatTemplate::load(path));
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::open(path));
  TANDEM_ASSIGN_OR_RETURN(const GgufTokenizer texts, gguf_tokenizer(gguf.content, path));
  TANDEM_ASSIGN_OR_RETURN(
      model->tokenizer, Tokenizer::parse(path, texts.tokenizer_json, texts.tokenizer_config_json));
  TANDEM_ASSIGN_OR_RETURN(model->chat, ChatTemplate::parse(path, texts.tokenizer_config_json));
  return absl::OkStatus();
}

absl::StatusOr<EmbeddingSettings> load_embedding(const std::string& path, const DecoderConfig& hf) {
  TANDEM_ASSIGN_OR_RETURN(EmbeddingSettings settings, load_embedding_config(path));
  if (!settings.dense.empty() && settings.dense.front().in != hf.hidden_size) {
    return out_of_range(absl::StrCat(path, ": in_features of the first Dense module"),
                        settings.dense.front().in,
                        absl::StrCat(hf.hidden_size, ", the hidden size"));
  }
  return settings;
}

// Text files and generation defaults.
absl::Status load_small_files(const LoadContext& context, const DecoderConfig& hf, LoadedModel* m) {
  TANDEM_RETURN_IF_ERROR(load_text(m->config.path, m));
  TANDEM_ASSIGN_OR_RETURN(const GenerationDefaults defaults,
                          load_generation_config(m->config.path));
  m->default_max_new_tokens = defaults.max_new_tokens;
  TANDEM_ASSIGN_OR_RETURN(m->embedding, load_embedding(m->config.path, hf));
  m->default_min_new_tokens = defaults.min_new_tokens;
  m->eos = defaults.eos_token_ids.empty() ? hf.eos_token_ids : defaults.eos_token_ids;
  m->defaults = params_of(defaults, m->eos);
  for (const std::string& note : defaults.not_applied) {
    context.report(
        absl::StrCat(m->config.name, ": generation_config.json: ", note, " is not applied"));
  }
  return absl::OkStatus();
}

// Layers of a model on `device`, and all of them; 1 of 1 without shards.
std::pair<int, int> layers_on(const ModelConfig& model, const std::string& device) {
  int here = model.shards.empty() ? 1 : 0, all = here;
  for (const ShardConfig& shard : model.shards) {
    all += shard.layers;
    if (shard.device == device) here += shard.layers;
  }
  return {here, all};
}

std::vector<DeviceConfig> shard_devices(const LoadContext& context, const ModelConfig& model) {
  std::vector<DeviceConfig> devices;
  for (const ShardConfig& shard : model.shards) {
    devices.push_back(*std::ranges::find(context.devices, shard.device, &DeviceConfig::name));
  }
  return devices;
}

// A model whose weights are loaded and whose pools are not allocated yet.
struct WithoutPools {
  LoadedModel* model;
  HiddenStates hidden;
  PoolRequest request;
};

class TorchLoader final : public ModelLoader {
 public:
  absl::Status check(const ModelConfig& model) const override;
  absl::StatusOr<Backend*> load(const LoadContext& context, const DeviceConfig& device,
                                const std::vector<LoadedModel*>& models) override;
  absl::Status finish(const LoadContext& context) override;
  void unload(const LoadedModel& model) override;
  absl::StatusOr<std::unique_ptr<OpenLora>> open_lora(const LoadedModel& model,
                                                      const std::string& path) override;
  void unload_lora(const LoadedModel& model, LoraId id) override {
    device_of(model)->unload_lora(model.id, id);
  }

 private:
  struct Place {
    std::unique_ptr<TorchDevice> device;
    DeviceBudget budget;
  };
  TorchDevice* device_of(const LoadedModel& model) const {
    return places_.at(model.config.device).device.get();
  }

  std::shared_ptr<TorchShared> shared_ = std::make_shared<TorchShared>();
  std::map<std::string, Place> places_;  // by device; complete before batches run
  // Devices whose configuration leaves packed_products open.
  std::vector<std::pair<DeviceConfig, TorchDevice*>> packable_;
};

absl::Status TorchLoader::check(const ModelConfig& model) const {
  LoadedModel unused;
  TANDEM_RETURN_IF_ERROR(load_text(model.path, &unused));
  TANDEM_RETURN_IF_ERROR(load_generation_config(model.path).status());
  TANDEM_ASSIGN_OR_RETURN(const DecoderConfig hf, load_hf_config(model.path));
  for (const ExtraConfig& lora : model.loras) {
    const absl::Status opened =
        LoraFile::open(lora.path, hf, FileAccess::kMapped, model.adapter_dtype).status();
    if (!opened.ok()) return annotate(opened, absl::StrCat("loras[", lora.name, "]"));
  }
  return load_embedding(model.path, hf).status();
}

// Adds the model to `loaded`, and its encoder if it has one.
absl::Status load_weights(const LoadContext& context, const DeviceConfig& device, LoadedModel* m,
                          TorchDevice* backend, std::vector<WithoutPools>* loaded) {
  const std::string& path = m->config.path;
  // Small files first: their errors are reported before gigabytes are read.
  TANDEM_ASSIGN_OR_RETURN(const DecoderConfig hf, load_hf_config(path));
  if (!m->is_replica) TANDEM_RETURN_IF_ERROR(load_small_files(context, hf, m));
  TANDEM_RETURN_IF_ERROR(
      backend->load(m->id, m->config, context.progress, shard_devices(context, m->config)));
  const ModelShape& shape = backend->shape(m->id);
  for (const int64_t id : m->defaults.bad_token_ids) {
    if (id < shape.vocab_size) continue;
    return out_of_range(absl::StrCat(path, "/generation_config.json: bad_words_ids"), id,
                        absl::StrCat("0 to ", shape.vocab_size - 1));
  }
  HiddenStates hidden = context.hidden_states_of(*m);
  // The hidden states of a model with an encoder are the encoder's.
  const HiddenStates encoded{.encodes = true, .condition = shape.reads_memory && hidden.condition};
  if (shape.reads_memory) hidden.condition = false;
  const auto [layers, all] = layers_on(m->config, device.name());
  const int64_t on_other_devices = shape.page_bytes * (all - layers) / all;
  loaded->push_back(
      {m,
       hidden,
       {m->config.name, bytes_of_page(shape, hidden) - on_other_devices, m->config.page_rows,
        shape.max_positions, m->config.kv_pages, backend->scratch_bytes(m->id)}});
  if (!shape.reads_memory) return absl::OkStatus();
  LoadedModel& encoder = context.models->add_encoder(*m, hf.start_token);
  TANDEM_RETURN_IF_ERROR(backend->load_encoder(encoder.id, m->id));
  const ModelShape& encoder_shape = backend->shape(encoder.id);
  loaded->push_back(
      {&encoder,
       encoded,
       {encoder.config.name, bytes_of_page(encoder_shape, encoded), encoder.config.page_rows,
        encoder_shape.max_positions, encoder.config.kv_pages}});
  return absl::OkStatus();
}

absl::Status too_little_memory(const DeviceConfig& device, const std::string& models,
                               int64_t needed, absl::string_view what, int64_t free) {
  return absl::ResourceExhaustedError(absl::StrCat("device ", device.name(), ": ", models,
                                                   " needs about ", needed, " bytes of ", what,
                                                   "; free: ", free, " bytes"));
}

// Whether the weights of more models fit into the free memory.
absl::Status check_weights(const std::vector<LoadedModel*>& models, const DeviceConfig& device,
                           const TorchDevice& backend) {
  int64_t needed = 0;
  std::vector<std::string> names;
  for (const LoadedModel* m : models) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, backend.weight_bytes(m->config));
    needed += bytes;
    names.push_back(m->config.name);
  }
  const int64_t free = backend.free_bytes();
  if (needed <= free) return absl::OkStatus();
  return too_little_memory(device, absl::StrJoin(names, ", "), needed, "weights", free);
}

// Whether the pools of more models fit into the free memory.
absl::Status check_pages(const std::vector<PoolRequest>& requests,
                         const std::vector<int64_t>& pages, const DeviceConfig& device,
                         const TorchDevice& backend) {
  int64_t needed = 0;
  std::vector<std::string> names;
  for (size_t i = 0; i < requests.size(); ++i) {
    needed += pages[i] * requests[i].page_bytes + requests[i].other_bytes;
    names.push_back(requests[i].name);
  }
  const int64_t free = backend.free_bytes();
  if (needed <= free) return absl::OkStatus();
  return too_little_memory(device, absl::StrJoin(names, ", "), needed, "KV pages", free);
}

absl::StatusOr<Backend*> TorchLoader::load(const LoadContext& context, const DeviceConfig& device,
                                           const std::vector<LoadedModel*>& models) {
  Place& place = places_[device.name()];
  if (place.device == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(place.device, TorchDevice::create(device, shared_));
  }
  TorchDevice* const backend = place.device.get();
  if (context.running) TANDEM_RETURN_IF_ERROR(check_weights(models, device, *backend));
  std::vector<WithoutPools> loaded;
  for (LoadedModel* m : models) {
    TANDEM_RETURN_IF_ERROR(load_weights(context, device, m, backend, &loaded));
  }
  std::vector<PoolRequest> requests;
  for (const WithoutPools& l : loaded) requests.push_back(l.request);
  // Shards of models that another device runs.
  const auto others = context.running ? std::vector<LoadedModel*>() : context.models->all();
  for (const LoadedModel* m : others) {
    const auto [layers, all] = layers_on(m->config, device.name());
    if (m->config.device == device.name() || m->config.shards.empty() || layers == 0) continue;
    requests.push_back({m->config.name, m->shape.page_bytes * layers / all, m->config.page_rows,
                        m->shape.max_positions, m->pool.pages});
  }
  // Half of the free memory: the rest is for buffers and for other processes.
  const int64_t budget = device.memory_bytes > 0 ? device.memory_bytes : backend->free_bytes() / 2;
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<int64_t> pages,
      place.budget.divide(device.name(), requests, budget, /*remaining=*/device.memory_bytes == 0,
                          context.config.limits.max_running));
  if (context.running) TANDEM_RETURN_IF_ERROR(check_pages(requests, pages, device, *backend));
  for (size_t i = 0; i < loaded.size(); ++i) {
    LoadedModel* const m = loaded[i].model;
    m->pool = pool_size(m->config.page_rows, pages[i], loaded[i].hidden);
    const absl::Status allocated = backend->allocate_pools(m->id, m->pool);
    if (!allocated.ok()) return annotate(allocated, absl::StrCat("model ", m->config.name));
    m->shape = backend->shape(m->id);
    place.budget.take(m->id, pages[i] * requests[i].page_bytes + requests[i].other_bytes);
    const int64_t rows = m->pool.pages * m->pool.page_rows;
    if (rows >= m->shape.max_positions) continue;
    context.report(absl::StrCat(m->config.name, ": its KV pages hold ", rows,
                                " rows, of a context of ", m->shape.max_positions,
                                " (memory_bytes of ", device.name(), ")"));
  }
  if (!context.running && device.kind == DeviceKind::kCuda && !device.packed_products.has_value()) {
    packable_.emplace_back(device, backend);
  }
  return backend;
}

void TorchLoader::unload(const LoadedModel& model) {
  const auto place = places_.find(model.config.device);
  if (place == places_.end() || place->second.device == nullptr) return;
  place->second.device->unload(model.id);
  place->second.budget.give_back(model.id);
  return_freed_memory();
}

class TorchLora final : public OpenLora {
 public:
  TorchLora(TorchDevice* device, ModelId model, std::string path, const LoraFile& header)
      : device_(device),
        model_(model),
        path_(std::move(path)),
        rank_(header.rank),
        bytes_(device->lora_bytes(model, header)) {}
  int rank() const override { return rank_; }
  int64_t bytes() const override { return bytes_; }
  absl::Status read() override {
    TANDEM_ASSIGN_OR_RETURN(file_, device_->read_lora(model_, path_));
    const int64_t now = device_->lora_bytes(model_, *file_);
    if (now == bytes_) return absl::OkStatus();
    return out_of_range(absl::StrCat(path_, ": bytes of its weights"), now,
                        absl::StrCat(bytes_, ", as before: it has changed"));
  }
  absl::Status load(LoraId id) override {
    absl::Status loaded = device_->load_lora(model_, id, *file_);
    file_.reset();
    return loaded;
  }

 private:
  TorchDevice* const device_;
  const ModelId model_;
  const std::string path_;
  const int rank_;
  const int64_t bytes_;
  std::optional<LoraFile> file_;
};

absl::StatusOr<std::unique_ptr<OpenLora>> TorchLoader::open_lora(const LoadedModel& model,
                                                                 const std::string& path) {
  TorchDevice* const device = device_of(model);
  TANDEM_ASSIGN_OR_RETURN(const LoraFile header, device->open_lora_header(model.id, path));
  return std::make_unique<TorchLora>(device, model.id, path, header);
}

// Packs weights last, into memory that nothing else needs.
absl::Status TorchLoader::finish(const LoadContext& context) {
  std::vector<PackableDevice> devices;
  for (const auto& [device, backend] : packable_) {
    PackableDevice& packable = devices.emplace_back();
    packable.gpu = device.index;
    packable.free_bytes = [backend = backend] { return backend->free_bytes(); };
    packable.pack = [backend = backend, &context,
                     name = device.name()](int64_t most) -> absl::StatusOr<int64_t> {
      TANDEM_ASSIGN_OR_RETURN(const int64_t taken, backend->pack_weights(most));
      if (taken > 0) {
        context.report(absl::StrFormat("%s: %.1f MB of weights packed for few rows", name,
                                       static_cast<double>(taken) / 1e6));
      }
      return taken;
    };
  }
  TANDEM_RETURN_IF_ERROR(pack_in_turn(devices));
  return_freed_memory();
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<ModelLoader> make_weights_loader() { return std::make_unique<TorchLoader>(); }

}  // namespace tandem
