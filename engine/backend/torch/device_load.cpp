#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/backend/torch/adapter.h"
#include "engine/backend/torch/caught.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/device_impl.h"
#include "engine/backend/torch/model/decoder.h"
#include "engine/backend/torch/model/encoder.h"
#include "engine/backend/torch/model/sharded_decoder.h"
#include "engine/backend/torch/weights/adapter_file.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/lora_file.h"
#include "engine/backend/torch/weights/safetensors/packed_ints.h"
#include "engine/base/status.h"

// Loading of models: files, weights, adapters and heads.
namespace tandem {
namespace {

// The last layer and the threads of each of the configuration's shards.
absl::StatusOr<std::vector<LayerShard>> layer_shards(const ModelConfig& config,
                                                     const DecoderConfig& decoder,
                                                     const std::vector<DeviceConfig>& devices,
                                                     const Platform& platform) {
  std::vector<LayerShard> shards;
  if (config.shards.empty()) return shards;
  const std::string field = absl::StrCat("models[", config.name, "].shards");
  if (decoder.encoder != nullptr) {
    return out_of_range(field, config.shards.size(), "none for a model with an encoder");
  }
  int end = 0;
  for (size_t i = 0; i < config.shards.size(); ++i) {
    end += config.shards[i].layers;
    const DeviceConfig& device = devices.at(i);
    shards.push_back(
        {end, team_size(device, platform), device.pin_threads ? device.first_cpu : -1});
  }
  if (end != decoder.layers) {
    return out_of_range(field, absl::StrCat(end, " layers together"),
                        absl::StrCat(decoder.layers, ", the layers of ", config.path));
  }
  return shards;
}

// The first names of a list that may be long.
std::string first_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, names.size()));
  std::string first = absl::StrJoin(names.begin(), end, ", ");
  if (names.size() <= kMost) return first;
  return absl::StrCat(first, " and ", names.size() - kMost, " more");
}

// The line of progress of a model that was loaded.
std::string loaded_line(const DeviceModel& loaded, const std::string& name,
                        const std::string& architecture, const std::string& device,
                        std::chrono::steady_clock::duration time) {
  const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  const int64_t expanded = loaded.weights->expanded_bytes();
  const std::string of_these =
      expanded == 0 ? ""
      : loaded.weights->store.dtype == DType::kFp8
          ? absl::StrFormat(
                " (%.1f MB of them not in fp8, because of sizes that are not multiples "
                "of %d: %s)",
                megabytes(expanded), kFp8Multiple, first_of(loaded.weights->expanded()))
          : absl::StrFormat(" (%.1f MB of them expanded from blocks without a product)",
                            megabytes(expanded));
  const std::string more =
      loaded.shares_weights ? " (shared with another device queue)"
      : loaded.packed_bytes > 0
          ? absl::StrFormat(" and %.1f MB of copies for few rows", megabytes(loaded.packed_bytes))
          : "";
  return absl::StrFormat("%s: %s, %.1f M parameters, %s, %.1f MB%s on %s%s, loaded in %.1f s", name,
                         architecture, static_cast<double>(loaded.shape.parameters) / 1e6,
                         loaded.shape.dtype, megabytes(loaded.shape.weight_bytes), of_these, device,
                         more, seconds(time));
}

std::string lora_field(const std::string& model, const ExtraConfig& lora) {
  return absl::StrCat("models[", model, "].loras[", lora.name, "]");
}

const char* packed_products_text(std::optional<bool> value) {
  return !value.has_value() ? "unset" : *value ? "true" : "false";
}

}  // namespace

void TorchDevice::Impl::complete(DeviceModel& loaded, int page_rows) const {
  const KvGeometry& geometry = loaded.model->geometry();
  loaded.shape = loaded.model->shape();
  loaded.shape.page_bytes = geometry.page_bytes(page_rows);
  loaded.shape.frontier_page_bytes = geometry.frontier_page_bytes(page_rows);
  loaded.shape.batch_invariant = platform.batch_invariant();
  loaded.shape.reads_single_ids = device.is_cpu();
  loaded.shape.queued = !device.is_cpu();
  const bool by_dimension = platform.keys_by_dimension();
  loaded.shape.page_format =
      absl::StrCat(device.is_cpu() ? absl::StrCat("cpu ", cpu::target()) : "cuda",
                   config.cpu_kernels == CpuKernels::kAten ? " aten" : "", ", ",
                   c10::toString(geometry.kv_type), " of ", c10::toString(geometry.hidden_type),
                   " rows, ", geometry.layers, " layers of ", geometry.kv_heads, " heads of ",
                   geometry.head_dim, by_dimension ? ", keys by dimension" : "");
  loaded.size.page_rows = page_rows;
}

absl::Status TorchDevice::load(ModelId model, const ModelConfig& config, const Progress& progress,
                               const std::vector<DeviceConfig>& shards) {
  const auto start = std::chrono::steady_clock::now();
  // On a GPU too: the host reorders its blocks.
  cpu::set_team_size(team_size(impl_->config, impl_->platform));
  const absl::Cleanup reset = [] { cpu::set_team_size(1); };
  TANDEM_ASSIGN_OR_RETURN(DecoderConfig whole, load_hf_config(config.path));
  TANDEM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(config.path));
  std::optional<PackedIntSource> unpacked;
  if (whole.packed_ints) {
    TANDEM_ASSIGN_OR_RETURN(unpacked, PackedIntSource::make(checkpoint, *whole.packed_ints));
  }
  const TensorSource& tensors = unpacked ? static_cast<const TensorSource&>(*unpacked) : checkpoint;
  TANDEM_ASSIGN_OR_RETURN(const DecoderLayout layout, check_decoder(whole, tensors));
  whole.names = layout.names;
  const int layers = config.layers == 0 ? whole.layers : config.layers;
  if (layers < 1 || layers > whole.layers) {
    return out_of_range(absl::StrCat("models[", config.name, "].layers"), layers,
                        absl::StrCat("1 to ", whole.layers, ", the layers of ", config.path));
  }
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<LayerShard> parts,
      layer_shards(config, first_layers(whole, layers), shards, impl_->platform));
  // Files of LoRA adapters, before gigabytes of weights are read.
  std::vector<LoraFile> loras;
  for (const ExtraConfig& lora : config.loras) {
    absl::StatusOr<LoraFile> file =
        LoraFile::open(lora.path, whole, FileAccess::kMapped, config.adapter_dtype);
    if (!file.ok()) return annotate(file.status(), lora_field(config.name, lora));
    loras.push_back(*std::move(file));
  }
  const bool stored =
      config.dtype == DType::kAuto &&
      impl_->platform.prefers_stored(tensors, is_gguf(config.path) || unpacked.has_value());
  const DecoderConfig loaded_config = first_layers(whole, layers);
  TANDEM_RETURN_IF_ERROR(
      impl_->load_decoder(model, {.name = config.name,
                                  .config = loaded_config,
                                  .tied = layout.tied,
                                  .tensors = tensors,
                                  .path = config.path,
                                  .dtype = stored ? DType::kStored : config.dtype,
                                  .page_rows = config.page_rows,
                                  .kv_dtype = config.kv_dtype,
                                  .shards = parts}));
  DeviceModel& loaded = impl_->models.at(model);
  loaded.whole = whole;
  loaded.adapter_dtype = config.adapter_dtype;
  ModelShape& shape = loaded.shape;
  if (layers == whole.layers) shape.parameters = layout.parameters;
  absl::StatusOr<std::string> fingerprint = fingerprint_of(whole, layout.tied, tensors);
  if (!fingerprint.ok() && !config.extras.empty()) return fingerprint.status();
  if (fingerprint.ok()) shape.fingerprint = *std::move(fingerprint);
  for (const ExtraConfig& extra : config.extras) {
    TANDEM_RETURN_IF_ERROR(impl_->load_extra(model, config.name, extra, whole, shape.fingerprint));
  }
  for (size_t i = 0; i < loras.size(); ++i) {
    const ExtraConfig& lora = config.loras[i];
    const auto id = LoraId(static_cast<int64_t>(i));
    const absl::StatusOr<int64_t> bytes = impl_->load_lora(loaded, id, loras[i]);
    if (!bytes.ok()) return annotate(bytes.status(), lora_field(config.name, lora));
    shape.loras.push_back({lora.name, loras[i].rank, *bytes});
    shape.weight_bytes += *bytes;
  }
  if (progress && !impl_->peers.empty()) progress(std::exchange(impl_->peers, {}));
  if (progress) {
    const auto time = std::chrono::steady_clock::now() - start;
    progress(loaded_line(loaded, config.name, whole.architecture, impl_->config.name(), time));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TorchDevice::weight_bytes(const ModelConfig& config) const {
  TANDEM_ASSIGN_OR_RETURN(const DecoderConfig whole, load_hf_config(config.path));
  TANDEM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(config.path));
  const bool blocks = is_gguf(config.path) || whole.packed_ints.has_value();
  if (config.dtype == DType::kStored ||
      (config.dtype == DType::kAuto && impl_->platform.prefers_stored(checkpoint, blocks))) {
    return checkpoint.total_bytes();
  }
  std::optional<PackedIntSource> unpacked;
  if (whole.packed_ints) {
    TANDEM_ASSIGN_OR_RETURN(unpacked, PackedIntSource::make(checkpoint, *whole.packed_ints));
  }
  const TensorSource& tensors = unpacked ? static_cast<const TensorSource&>(*unpacked) : checkpoint;
  TANDEM_ASSIGN_OR_RETURN(const DecoderLayout layout, check_decoder(whole, tensors));
  TANDEM_ASSIGN_OR_RETURN(
      const DType dtype,
      impl_->platform.weight_dtype(config.dtype, whole.dtype.value_or(SafeDType::kF32)));
  switch (dtype) {
    case DType::kFloat64:
      return 8 * layout.parameters;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2 * layout.parameters;
    case DType::kInt8:
    case DType::kInt4:  // with its scales and its larger embeddings
    case DType::kQ40:
      return layout.parameters;
    case DType::kFp8: {  // embedding and output matrix: 2 bytes
      const LinearSpec table = embedding_spec(whole);
      return layout.parameters + table.in * table.outs.front() * (layout.tied ? 1 : 2);
    }
    default:
      return 4 * layout.parameters;
  }
}

absl::Status TorchDevice::Impl::load_extra(ModelId model, const std::string& name,
                                           const ExtraConfig& extra, const DecoderConfig& base,
                                           const std::string& fingerprint) try {
  const auto prefix = absl::StrCat("models[", name, "].extras[", extra.name, "]");
  absl::StatusOr<AdapterFile> file = AdapterFile::open(extra.path, base, fingerprint);
  if (!file.ok()) return annotate(file.status(), prefix);
  const c10::InferenceMode inference;
  const c10::DeviceGuard guard(device);
  DeviceModel& loaded = models.at(model);
  if (file->kind == AdapterFile::kHead && file->layer > loaded.shape.layers) {
    return out_of_range(absl::StrCat(prefix, ": ", extra.path, "/adapter.json: layer"), file->layer,
                        absl::StrCat("1 to ", loaded.shape.layers, ", the layers that are loaded"));
  }
  absl::Status added = loaded.extras.add(*file, loaded.config, loaded.weights->store);
  if (!added.ok()) return annotate(added, prefix);
  if (file->kind == AdapterFile::kHead) {
    loaded.shape.heads.push_back({extra.name, file->layer});
    return absl::OkStatus();
  }
  const Adapter& adapter = loaded.extras.adapters.back();
  const auto size = [](const at::Tensor& t, int64_t dim) {
    return t.defined() ? static_cast<int>(t.size(dim)) : 0;
  };
  AdapterShape shape;
  shape.name = extra.name;
  shape.masks = size(adapter.masks, 0);
  shape.prompt_rows = size(adapter.prompt_keys, 1);
  shape.additions = adapter.additions.has_value();
  if (shape.additions) loaded.shape.weight_bytes += adapter.additions->bytes();
  shape.source = adapter.projector ? adapter.projector->source() : 0;
  shape.source_fingerprint = file->source_fingerprint;
  shape.layer = file->layer;
  shape.replace = file->replace;
  shape.foreign = file->foreign;
  shape.aligned = file->aligned;
  loaded.shape.adapters.push_back(std::move(shape));
  return absl::OkStatus();
} catch (...) {
  return caught(name);
}

absl::StatusOr<int64_t> TorchDevice::Impl::load_lora(DeviceModel& loaded, LoraId id,
                                                     const LoraFile& file) const try {
  const c10::InferenceMode inference;
  const c10::DeviceGuard guard(device);
  TANDEM_ASSIGN_OR_RETURN(
      LoraWeights weights,
      LoraWeights::load(file, loaded.config, loaded.weights->store, loaded.adapter_dtype));
  platform.synchronize(config.index);
  const int64_t bytes = weights.bytes();
  loaded.extras.loras->add(id, std::move(weights));
  return bytes;
} catch (...) {
  return caught(file.tensors.where());
}

absl::StatusOr<LoraFile> TorchDevice::open_lora_header(ModelId model,
                                                       const std::string& path) const {
  return LoraFile::open_header(path, impl_->models.at(model).whole);
}

absl::StatusOr<LoraFile> TorchDevice::read_lora(ModelId model, const std::string& path) const {
  const DeviceModel& loaded = impl_->models.at(model);
  return LoraFile::open(path, loaded.whole, FileAccess::kCopied, loaded.adapter_dtype);
}

int64_t TorchDevice::lora_bytes(ModelId model, const LoraFile& file) const {
  const DeviceModel& loaded = impl_->models.at(model);
  return LoraWeights::bytes_of(file, loaded.config, loaded.weights->store, loaded.adapter_dtype);
}

absl::Status TorchDevice::load_lora(ModelId model, LoraId id, const LoraFile& file) {
  return impl_->load_lora(impl_->models.at(model), id, file).status();
}

void TorchDevice::unload_lora(ModelId model, LoraId id) {
  impl_->models.at(model).extras.loras->remove(id);
}

absl::Status TorchDevice::load_decoder(ModelId model, const std::string& name,
                                       const DecoderConfig& config, bool tied,
                                       const TensorSource& source, DType dtype, int page_rows,
                                       DType kv_dtype, const std::vector<LayerShard>& shards) {
  return impl_->load_decoder(model, {.name = name,
                                     .config = config,
                                     .tied = tied,
                                     .tensors = source,
                                     .path = "",
                                     .dtype = dtype,
                                     .page_rows = page_rows,
                                     .kv_dtype = kv_dtype,
                                     .shards = shards});
}

absl::Status TorchDevice::Impl::load_decoder(ModelId model, const DecoderSource& source) try {
  const DecoderConfig& c = source.config;
  if (source.page_rows < 1) return out_of_range("page_rows", source.page_rows, "1 or more");
  const c10::InferenceMode inference;
  if (absl::Status s = platform.check_shape(c); !s.ok()) return annotate(s, source.name);
  WeightStore store{.device = device, .kernels = config.cpu_kernels};
  TANDEM_ASSIGN_OR_RETURN(store.dtype,
                          platform.weight_dtype(source.dtype, c.dtype.value_or(SafeDType::kF32)));
  TANDEM_RETURN_IF_ERROR(platform.check_dtype(store.dtype, config.index));
  TANDEM_ASSIGN_OR_RETURN(const at::ScalarType kv, platform.kv_type(source.kv_dtype, store.rows()));
  const c10::DeviceGuard guard(device);
  DeviceModel loaded;
  loaded.config = c;
  loaded.kv_type = kv;
  if (source.shards.empty()) {
    TANDEM_RETURN_IF_ERROR(load_weights(loaded, source, store));
    platform.synchronize(config.index);
    loaded.model = std::make_unique<Decoder>(source.name, c, loaded.weights, kv);
  } else {
    absl::StatusOr<std::unique_ptr<ShardedDecoder>> sharded =
        ShardedDecoder::load(source.name, c, source.tied, source.tensors, store, kv, source.shards);
    if (!sharded.ok()) return annotate(sharded.status(), source.name);
    loaded.weights = (*sharded)->weights();
    loaded.model = *std::move(sharded);
  }
  complete(loaded, source.page_rows);
  models.put(model, std::move(loaded));
  return absl::OkStatus();
} catch (...) {
  return caught(source.name);
}

absl::Status TorchDevice::Impl::load_weights(DeviceModel& loaded, const DecoderSource& source,
                                             const WeightStore& store) {
  const std::string key =
      absl::StrCat(source.path, "|", device.str(), ":", config.index, "|", dtype_name(store.dtype),
                   "|", static_cast<int>(store.kernels));
  if (!source.path.empty()) {
    const TorchShared::Weights there = shared->weights(key);
    const auto layers = static_cast<size_t>(source.config.layers);
    if (there.weights != nullptr && there.weights->layers.size() >= layers) {
      if (there.packed_products != config.packed_products) {
        return out_of_range(
            absl::StrCat(config.name(), ".packed_products"),
            packed_products_text(config.packed_products),
            absl::StrCat(packed_products_text(there.packed_products), ", as on ", there.device,
                         ", which shares the weights of ", source.name));
      }
      loaded.weights = there.weights;
      loaded.shares_weights = true;
      return absl::OkStatus();
    }
  }
  absl::StatusOr<DecoderWeights> own =
      DecoderWeights::load(source.config, source.tied, source.tensors, store);
  if (!own.ok()) return annotate(own.status(), source.name);
  auto weights = std::make_shared<DecoderWeights>(*std::move(own));
  const bool own_kernels =
      config.kind == DeviceKind::kCpu && config.cpu_kernels == CpuKernels::kOwn;
  if (config.packed_products.value_or(own_kernels)) {
    loaded.packed_bytes = weights->packed_bytes();
    weights->pack();
  }
  if (!config.packed_products.has_value() && !own_kernels) loaded.unpacked = weights;
  loaded.weights = weights;
  if (!source.path.empty()) {
    shared->share_weights(key, loaded.weights, config.name(), config.packed_products);
  }
  return absl::OkStatus();
}

absl::Status TorchDevice::load_encoder(ModelId encoder, ModelId decoder) try {
  const c10::InferenceMode inference;
  DeviceModel& whole = impl_->models.at(decoder);
  if (whole.weights->encoder == nullptr) {
    return absl::InternalError(absl::StrCat(whole.shape.name, " has no encoder"));
  }
  const std::string name = absl::StrCat(whole.shape.name, ":encoder");
  DeviceModel& loaded = impl_->models.put(encoder, {});
  loaded.config = whole.config;
  loaded.weights = whole.weights;
  loaded.kv_type = whole.kv_type;
  loaded.shares_weights = true;
  loaded.model = std::make_unique<Encoder>(name, whole.config, whole.weights, whole.kv_type);
  impl_->complete(loaded, whole.size.page_rows);
  loaded.shape.fingerprint = whole.shape.fingerprint;
  // Another model's rows condition the encoder; mask tokens stay with the decoder.
  std::vector<Adapter> others;
  std::vector<AdapterShape> shapes;
  for (size_t i = 0; i < whole.extras.adapters.size(); ++i) {
    Adapter& adapter = whole.extras.adapters[i];
    const bool projects = adapter.projector.has_value();
    (projects ? loaded.extras.adapters : others).push_back(std::move(adapter));
    (projects ? loaded.shape.adapters : shapes).push_back(whole.shape.adapters[i]);
  }
  whole.extras.adapters = std::move(others);
  whole.shape.adapters = std::move(shapes);
  return absl::OkStatus();
} catch (...) {
  return caught("encoder");
}

}  // namespace tandem
