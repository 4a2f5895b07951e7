#include "engine/backend/torch/device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/async/worker.h"
#include "engine/backend/torch/adapter.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/caught.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/executor.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/memory.h"
#include "engine/backend/torch/model/decoder.h"
#include "engine/backend/torch/model/encoder.h"
#include "engine/backend/torch/model/sharded_decoder.h"
#include "engine/backend/torch/mover.h"
#include "engine/backend/torch/open_queue.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/weights/adapter_file.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/safetensors/packed_ints.h"
#include "engine/base/status.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/stream.h"
#endif

namespace tandem {
namespace {

absl::Status behind_a_shortage() {
  return absl::ResourceExhaustedError("behind a batch that had no memory");
}

absl::StatusOr<DType> weight_dtype(DType dtype, const DecoderConfig& config, bool on_cpu) {
  if (dtype == DType::kAuto) {
    const SafeDType file = config.dtype.value_or(SafeDType::kF32);
    if (!on_cpu && file == SafeDType::kBF16) return DType::kBFloat16;
    if (!on_cpu && file == SafeDType::kF16) return DType::kFloat16;
    return DType::kFloat32;
  }
  if (!on_cpu && dtype == DType::kInt8) {
    return out_of_range("dtype", dtype_name(dtype),
                        "auto, fp32, bf16, fp16, fp64, int4, stored on CUDA");
  }
  return dtype;
}

absl::StatusOr<at::ScalarType> kv_type(DType kv, at::ScalarType product, bool on_cpu) {
  const bool exact = product == at::kDouble;
  const at::ScalarType own = !on_cpu || exact ? product : at::kFloat;
  const at::ScalarType type = kv == DType::kFloat32    ? at::kFloat
                              : kv == DType::kBFloat16 ? at::kBFloat16
                                                       : own;
  if (type != own && (!on_cpu || exact)) {
    return out_of_range("kv_dtype", type == at::kFloat ? "DTYPE_FP32" : "DTYPE_BF16",
                        on_cpu ? "unset with DTYPE_FP64" : "unset, or as dtype on CUDA");
  }
  return type;
}

struct Loaded {
  DecoderConfig config;
  std::shared_ptr<const DecoderWeights> weights;
  at::ScalarType kv_type = at::kFloat;
  bool shares_weights = false;
  std::shared_ptr<DecoderWeights> unpacked;  // that may be kept a second time; null: decided
  int64_t packed_bytes = 0;                  // of weights that are kept a second time
  std::unique_ptr<Model> model;
  ModelExtras extras;
  ModelShape shape;
  PoolSize size;
  std::unique_ptr<KvPool> pool;
  std::unique_ptr<Executor> executor;
};

int team_size(const DeviceConfig& config) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (config.threads > 0) return config.threads;
  return config.kind == DeviceKind::kCpu ? cores : std::min(cores, 4);
}

bool has_blocks(const TensorSource& source) {
  return std::ranges::any_of(
      source.names(), [&](const std::string& name) { return source.find(name)->block != nullptr; });
}

// Where the configuration's shards end, and whose threads run them.
absl::StatusOr<std::vector<LayerShard>> layer_shards(const ModelConfig& config,
                                                     const DecoderConfig& decoder,
                                                     const std::vector<DeviceConfig>& devices) {
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
    shards.push_back({end, team_size(device), device.pin_threads ? device.first_cpu : -1});
  }
  if (end != decoder.layers) {
    return out_of_range(field, absl::StrCat(end, " layers together"),
                        absl::StrCat(decoder.layers, ", the layers of ", config.path));
  }
  return shards;
}

}  // namespace

struct TorchDevice::Impl {
  // own: the device queue's queue; null: the host's
  Impl(const DeviceConfig& c, std::shared_ptr<TorchShared> s, std::unique_ptr<Queue> own)
      : config(c),
        device(c.kind == DeviceKind::kCpu ? at::Device(at::kCPU)
                                          : at::Device(at::kCUDA, static_cast<int8_t>(c.index))),
        shared(std::move(s)),
        queue(own == nullptr ? nullptr : std::make_unique<DeviceQueue>(std::move(own))),
        kept(queue == nullptr || !c.graphs ? nullptr
                                           : std::make_unique<AnswerCache>(*queue->queue, device)),
        mover(queue.get()),
        device_queue(1, [this](const std::function<void()>& loop) { run_lane(loop); }) {}

  void run_lane(const std::function<void()>& loop) const {
    const c10::InferenceMode inference;
    cpu::set_team_size(team_size(config), config.pin_threads ? config.first_cpu : -1);
    loop();
  }

  // What follows from a model that is there.
  void complete(Loaded& loaded, int page_rows) const;
  int64_t scratch_pages(const Loaded& loaded) const;  // 0: its steps are not replayed

  // A batch that the device has and the host has not looked at yet.
  struct UnderWay {
    const Batch* batch;
    Executor* executor;
    Done done;
    std::chrono::steady_clock::time_point start;
    int64_t number;
  };

  // On the device queue, like what follows: runs the batch to its end, or leaves it under way.
  void begin(const Batch& batch, Done done);
  absl::StatusOr<Executor*> prepare(const Batch& batch);
  void finish_up_to(int64_t number);  // those under way
  void finish_oldest();
  BatchResult ended(const Batch& batch, BatchResult result,
                    std::chrono::steady_clock::time_point start);
  absl::Status settled(absl::Status failure) const;

  const DeviceConfig config;
  const at::Device device;
  const std::shared_ptr<TorchShared> shared;
  const std::unique_ptr<const DeviceQueue> queue;
  const std::unique_ptr<AnswerCache> kept;  // null: batches end before others begin
  Mover mover;                              // the device queue's
  std::map<ModelId, Loaded> models;         // changed only while no batch is in flight
  bool refused = false;                     // the last batch: it had no memory. The device queue's
  std::deque<UnderWay> under_way;           // oldest first. The device queue's, as the next two
  int64_t begun = 0;
  std::chrono::steady_clock::time_point last_end;
  std::string peers;    // what is to be said of other devices
  Worker device_queue;  // last: ends before what it uses
};

void TorchDevice::Impl::complete(Loaded& loaded, int page_rows) const {
  const KvGeometry& geometry = loaded.model->geometry();
  loaded.shape = loaded.model->shape();
  loaded.shape.page_bytes = geometry.page_bytes(page_rows);
  loaded.shape.frontier_page_bytes = geometry.frontier_page_bytes(page_rows);
  // Libraries' products take another order of sums for another number of rows.
  loaded.shape.batch_invariant = device.is_cpu() && config.cpu_kernels == CpuKernels::kOwn;
  loaded.size.page_rows = page_rows;
}

int64_t TorchDevice::Impl::scratch_pages(const Loaded& loaded) const {
  const bool replays =
      queue != nullptr && config.graphs && StepGraphs::fit(*loaded.model, loaded.shape);
  return replays ? StepGraphs::scratch_pages(loaded.size.page_rows) : 0;
}

// A batch that is put on the queue as a whole, answers included, stays under way while jobs that
// wait for the device queue are begun: what follows on it is launched before the host has looked at
// it. Of a chain of drafts the host so waits for the first when the device has the last.
void TorchDevice::Impl::begin(const Batch& batch, Done done) {
  const auto start = std::chrono::steady_clock::now();
  const bool alone = !batch.moves.empty() || !batch.forget.empty() || (batch.behind && refused) ||
                     under_way.size() == AnswerCache::kMostBatches;
  if (alone) finish_up_to(begun);
  BatchResult result;
  try {
    absl::StatusOr<Executor*> executor = prepare(batch);
    result.status = executor.status();
    if (executor.ok() && *executor != nullptr) {
      if ((*executor)->start(batch)) {
        refused = false;
        under_way.push_back({&batch, *executor, std::move(done), start, ++begun});
        device_queue.post([this, number = begun] { finish_up_to(number); });
        return;
      }
      finish_up_to(begun);  // which may be refused only now
      if (batch.behind && refused) {
        result.status = behind_a_shortage();
      } else {
        (*executor)->run(batch, result.works);
      }
    }
  } catch (...) {
    result.status = caught(config.name());
  }
  finish_up_to(begun);
  result = ended(batch, std::move(result), start);
  refused = absl::IsResourceExhausted(result.status);
  done(std::move(result));
}

void TorchDevice::Impl::finish_up_to(int64_t number) {
  while (!under_way.empty() && under_way.front().number <= number) finish_oldest();
}

void TorchDevice::Impl::finish_oldest() {
  UnderWay oldest = std::move(under_way.front());
  under_way.pop_front();
  BatchResult result;
  try {
    oldest.executor->finish(*oldest.batch, result.works);
  } catch (...) {
    result.status = caught(config.name());
  }
  if (refused && oldest.batch->behind && result.status.ok()) {
    result.status = behind_a_shortage();
  }
  result = ended(*oldest.batch, std::move(result), oldest.start);
  refused = absl::IsResourceExhausted(result.status);
  oldest.done(std::move(result));
}

BatchResult TorchDevice::Impl::ended(const Batch& batch, BatchResult result,
                                     std::chrono::steady_clock::time_point start) {
  if (!result.status.ok()) {
    result.status = settled(std::move(result.status));
    result.works.clear();
    result.works.resize(batch.works.size());
    for (WorkResult& w : result.works) w.status = result.status;
  }
  const auto end = std::chrono::steady_clock::now();
  result.busy = end - std::max(start, last_end);
  last_end = end;
  return result;
}

// What was put on the queue before the failure may still run: nobody may use its memory again, or
// read what moves bring, before it is done. A device that cannot even wait is lost.
absl::Status TorchDevice::Impl::settled(absl::Status failure) const {
  if (queue == nullptr) return failure;
  try {
    queue->finish();
  } catch (...) {
    const absl::Status after = caught(config.name());
    if (!absl::IsResourceExhausted(after)) return absl::UnavailableError(after.message());
  }
  return failure;
}

// What goes before its works. Null: there are none.
absl::StatusOr<Executor*> TorchDevice::Impl::prepare(const Batch& batch) {
  shared->values().forget(batch.forget);
  TANDEM_RETURN_IF_ERROR(mover.put(batch.moves, [this](ModelId id) { return shared->pool(id); }));
  if (batch.behind && refused) return behind_a_shortage();
  if (batch.works.empty()) {
    if (queue != nullptr && !batch.moves.empty()) queue->finish();
    return nullptr;
  }
  const ModelId id = batch.works.front().model;
  const auto it = models.find(id);
  if (it == models.end() || it->second.executor == nullptr) {
    return absl::InternalError(absl::StrCat("model ", id.value, " is not on ", config.name()));
  }
  for (const Work& w : batch.works) {
    if (w.model != id) return absl::InternalError("a batch with works of several models");
  }
  return it->second.executor.get();
}

TorchDevice::TorchDevice(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TorchDevice::~TorchDevice() {
  for (const auto& [id, loaded] : impl_->models) impl_->shared->remove_pool(id);
}

absl::StatusOr<std::unique_ptr<TorchDevice>> TorchDevice::create(
    const DeviceConfig& config, std::shared_ptr<TorchShared> shared) {
  if (config.threads < 0) return out_of_range("threads", config.threads, "0 or more");
  if (const char* target = std::getenv("TANDEM_CPU_TARGET"); target != nullptr) {
    if (absl::Status s = cpu::force_target(target); !s.ok())
      return annotate(s, "TANDEM_CPU_TARGET");
  }
  try {
    TANDEM_ASSIGN_OR_RETURN(OpenedQueue own, open_queue(config, *shared));
    auto impl = std::make_unique<Impl>(config, std::move(shared), std::move(own.queue));
    impl->peers = std::move(own.peers);
    return std::unique_ptr<TorchDevice>(new TorchDevice(std::move(impl)));
  } catch (...) {
    return caught(config.name());
  }
}

absl::Status TorchDevice::load(ModelId model, const ModelConfig& config, const Progress& progress,
                               const std::vector<DeviceConfig>& shards) {
  const auto start = std::chrono::steady_clock::now();
  cpu::set_team_size(team_size(impl_->config));  // for a GPU too: blocks are put in its order here
  const absl::Cleanup alone = [] { cpu::set_team_size(1); };
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
  TANDEM_ASSIGN_OR_RETURN(const std::vector<LayerShard> parts,
                          layer_shards(config, first_layers(whole, layers), shards));
  const bool in_blocks = impl_->device.is_cpu() ? impl_->config.cpu_kernels == CpuKernels::kOwn &&
                                                      (is_gguf(config.path) || unpacked)
                                                : has_blocks(tensors);
  const bool stored = config.dtype == DType::kAuto && in_blocks;
  const DType dtype = stored ? DType::kStored : config.dtype;
  TANDEM_RETURN_IF_ERROR(load_shared(model, config.name, first_layers(whole, layers), layout.tied,
                                     tensors, config.path, dtype, config.page_rows, config.kv_dtype,
                                     parts));
  ModelShape& shape = impl_->models[model].shape;
  if (layers == whole.layers) shape.parameters = layout.parameters;
  absl::StatusOr<std::string> fingerprint = fingerprint_of(whole, layout.tied, tensors);
  if (!fingerprint.ok() && !config.extras.empty()) return fingerprint.status();  // else nobody asks
  if (fingerprint.ok()) shape.fingerprint = *std::move(fingerprint);
  for (const ExtraConfig& extra : config.extras) {
    TANDEM_RETURN_IF_ERROR(load_extra(model, config.name, extra, whole, shape.fingerprint));
  }
  if (progress && !impl_->peers.empty()) progress(std::exchange(impl_->peers, {}));
  if (progress) {
    const auto time = std::chrono::steady_clock::now() - start;
    const Loaded& loaded = impl_->models[model];
    const int64_t expanded = loaded.weights->expanded_bytes();
    const std::string of_these =
        expanded == 0
            ? ""
            : absl::StrFormat(" (%.1f MB of them expanded from blocks that no product reads)",
                              static_cast<double>(expanded) / 1e6);
    progress(absl::StrFormat(
        "%s: %s, %.1f M parameters, %s, %.1f MB%s on %s%s, loaded in %.1f s", config.name,
        whole.architecture, static_cast<double>(shape.parameters) / 1e6, shape.dtype,
        static_cast<double>(shape.weight_bytes) / 1e6, of_these, impl_->config.name(),
        loaded.shares_weights     ? " (shared with another device queue)"
        : loaded.packed_bytes > 0 ? absl::StrFormat(" and %.1f MB of them packed for few rows",
                                                    static_cast<double>(loaded.packed_bytes) / 1e6)
                                  : "",
        seconds(time)));
  }
  return absl::OkStatus();
}

absl::Status TorchDevice::load_extra(ModelId model, const std::string& name,
                                     const ExtraConfig& extra, const DecoderConfig& base,
                                     const std::string& fingerprint) try {
  const auto prefix = absl::StrCat("models[", name, "].extras[", extra.name, "]");
  absl::StatusOr<AdapterFile> file = AdapterFile::open(extra.path, base, fingerprint);
  if (!file.ok()) return annotate(file.status(), prefix);
  const c10::InferenceMode inference;
  const c10::OptionalDeviceGuard guard(impl_->device.is_cuda() ? std::optional(impl_->device)
                                                               : std::nullopt);
  Loaded& loaded = impl_->models[model];
  if (file->kind == AdapterFile::kHead && file->layer > loaded.shape.layers) {
    return out_of_range(absl::StrCat(prefix, ": ", extra.path, "/adapter.json: layer"), file->layer,
                        absl::StrCat("1 to ", loaded.shape.layers, ", the layers that are loaded"));
  }
  absl::Status added = loaded.extras.add(*file, loaded.weights->store);
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

absl::Status TorchDevice::load_decoder(ModelId model, const std::string& name,
                                       const DecoderConfig& config, bool tied,
                                       const TensorSource& source, DType dtype, int page_rows,
                                       DType kv_dtype, const std::vector<LayerShard>& shards) {
  return load_shared(model, name, config, tied, source, "", dtype, page_rows, kv_dtype, shards);
}

absl::Status TorchDevice::load_shared(ModelId model, const std::string& name,
                                      const DecoderConfig& config, bool tied,
                                      const TensorSource& source, const std::string& path,
                                      DType dtype, int page_rows, DType kv_dtype,
                                      const std::vector<LayerShard>& shards) try {
  if (page_rows < 1) return out_of_range("page_rows", page_rows, "1 or more");
  const c10::InferenceMode inference;
  const bool on_cpu = impl_->device.is_cpu();
#ifdef TANDEM_CUDA
  if (!on_cpu) {
    if (absl::Status s = cuda::check_shape(config); !s.ok()) return annotate(s, name);
  }
#endif
  WeightStore store{.device = impl_->device, .kernels = impl_->config.cpu_kernels};
  TANDEM_ASSIGN_OR_RETURN(store.dtype, weight_dtype(dtype, config, on_cpu));
  TANDEM_ASSIGN_OR_RETURN(const at::ScalarType kv, kv_type(kv_dtype, store.rows(), on_cpu));
  const c10::OptionalDeviceGuard guard(impl_->device.is_cuda() ? std::optional(impl_->device)
                                                               : std::nullopt);
  if (!shards.empty()) {
    absl::StatusOr<std::unique_ptr<ShardedDecoder>> sharded =
        ShardedDecoder::load(name, config, tied, source, store, kv, shards);
    if (!sharded.ok()) return annotate(sharded.status(), name);
    Loaded& loaded = impl_->models[model];
    loaded.config = config;
    loaded.weights = (*sharded)->weights();
    loaded.kv_type = kv;
    loaded.model = *std::move(sharded);
    impl_->complete(loaded, page_rows);
    return absl::OkStatus();
  }
  const std::string key =
      absl::StrCat(path, "|", impl_->device.str(), ":", impl_->config.index, "|",
                   dtype_name(store.dtype), "|", static_cast<int>(store.kernels));
  std::shared_ptr<const DecoderWeights> weights =
      path.empty() ? nullptr : impl_->shared->weights(key);
  const bool there =
      weights != nullptr && weights->layers.size() >= static_cast<size_t>(config.layers);
  int64_t packed_bytes = 0;
  std::shared_ptr<DecoderWeights> unpacked;
  if (!there) {
    absl::StatusOr<DecoderWeights> own = DecoderWeights::load(config, tied, source, store);
    if (!own.ok()) return annotate(own.status(), name);
    auto fresh = std::make_shared<DecoderWeights>(*std::move(own));
    const std::optional<bool> asked = impl_->config.packed_products;
    if (asked.value_or(false)) {
      packed_bytes = fresh->packed_bytes();
      fresh->pack();
    }
    if (!asked.has_value()) unpacked = fresh;
    weights = std::move(fresh);
    if (!path.empty()) impl_->shared->keep_weights(key, weights);
  }
#ifdef TANDEM_CUDA
  if (impl_->device.is_cuda()) cuda::synchronize(impl_->config.index);
#endif
  Loaded& loaded = impl_->models[model];
  loaded.config = config;
  loaded.weights = weights;
  loaded.kv_type = kv;
  loaded.shares_weights = there;
  loaded.unpacked = std::move(unpacked);
  loaded.packed_bytes = packed_bytes;
  loaded.model = std::make_unique<Decoder>(name, config, std::move(weights), kv);
  impl_->complete(loaded, page_rows);
  return absl::OkStatus();
} catch (...) {
  return caught(name);
}

absl::Status TorchDevice::load_encoder(ModelId encoder, ModelId decoder) try {
  const c10::InferenceMode inference;
  Loaded& whole = impl_->models.at(decoder);
  if (whole.weights->encoder == nullptr) {
    return absl::InternalError(absl::StrCat(whole.shape.name, " has no encoder"));
  }
  const std::string name = absl::StrCat(whole.shape.name, ":encoder");
  Loaded& loaded = impl_->models[encoder];
  loaded.config = whole.config;
  loaded.weights = whole.weights;
  loaded.kv_type = whole.kv_type;
  loaded.shares_weights = true;
  loaded.model = std::make_unique<Encoder>(name, whole.config, whole.weights, whole.kv_type);
  impl_->complete(loaded, whole.size.page_rows);
  loaded.shape.fingerprint = whole.shape.fingerprint;
  // What is fed with another model's rows is the encoder; masks stay with the decoder.
  std::vector<Adapter> kept;
  std::vector<AdapterShape> shapes;
  for (size_t i = 0; i < whole.extras.adapters.size(); ++i) {
    Adapter& adapter = whole.extras.adapters[i];
    const bool fed = adapter.projector.has_value();
    (fed ? loaded.extras.adapters : kept).push_back(std::move(adapter));
    (fed ? loaded.shape.adapters : shapes).push_back(whole.shape.adapters[i]);
  }
  whole.extras.adapters = std::move(kept);
  whole.shape.adapters = std::move(shapes);
  return absl::OkStatus();
} catch (...) {
  return caught("encoder");
}

absl::Status TorchDevice::allocate_pools(ModelId model, const PoolSize& size) try {
  const auto it = impl_->models.find(model);
  if (it == impl_->models.end()) return absl::InternalError("allocate_pools before load");
  Loaded& loaded = it->second;
  if (size.page_rows != loaded.size.page_rows) {
    return out_of_range("page_rows", size.page_rows, absl::StrCat(loaded.size.page_rows));
  }
  const c10::InferenceMode inference;
  const auto& adapters = loaded.extras.adapters;
  std::optional<int64_t> scratch;
  int64_t end = first_prompt_page(loaded.shape, size, adapters.size());
  if (const int64_t pages = impl_->scratch_pages(loaded); pages > 0) {
    scratch = std::exchange(end, end + pages);
  }
  loaded.pool = std::make_unique<KvPool>(loaded.model->geometry(), size, impl_->device,
                                         end - size.pages, impl_->queue.get());
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (!adapters[i].prompt_keys.defined()) continue;
    loaded.pool->fill(first_prompt_page(loaded.shape, size, i), adapters[i].prompt_keys,
                      adapters[i].prompt_values);
  }
  if (impl_->queue != nullptr) impl_->queue->finish();
  loaded.executor = std::make_unique<Executor>(
      *loaded.model, loaded.shape, loaded.extras, *loaded.pool, impl_->shared->values(),
      [shared = impl_->shared.get()](ModelId id) { return shared->pool(id); }, impl_->kept.get(),
      scratch);
  loaded.size = size;
  impl_->shared->add_pool(model, loaded.pool.get());
  return absl::OkStatus();
} catch (...) {
  return caught("pools");
}

absl::StatusOr<int64_t> TorchDevice::pack_weights(int64_t most) try {
  const c10::InferenceMode inference;
  const c10::OptionalDeviceGuard guard(impl_->device.is_cuda() ? std::optional(impl_->device)
                                                               : std::nullopt);
  int64_t taken = 0;
  for (auto& [id, loaded] : impl_->models) {
    const auto weights = std::exchange(loaded.unpacked, nullptr);
    const int64_t bytes = weights == nullptr ? 0 : weights->packed_bytes();
    if (bytes == 0 || bytes > most - taken) continue;
    weights->pack();
    loaded.packed_bytes = bytes;
    taken += bytes;
  }
#ifdef TANDEM_CUDA
  if (impl_->device.is_cuda()) cuda::synchronize(impl_->config.index);
#endif
  return taken;
} catch (...) {
  return caught("packed_products");
}

int64_t TorchDevice::scratch_bytes(ModelId model) const {
  const Loaded& loaded = impl_->models.at(model);
  return impl_->scratch_pages(loaded) * loaded.shape.page_bytes;
}

int64_t TorchDevice::free_bytes() const {
#ifdef TANDEM_CUDA
  if (impl_->device.is_cuda()) return cuda::free_bytes(impl_->config.index);
#endif
  return free_host_bytes();
}

const ModelShape& TorchDevice::shape(ModelId model) const { return impl_->models.at(model).shape; }

const PoolSize& TorchDevice::pool(ModelId model) const { return impl_->models.at(model).size; }

void TorchDevice::launch(const Batch& batch, Done done) {
  impl_->device_queue.post(
      [this, &batch, done = std::move(done)]() mutable { impl_->begin(batch, std::move(done)); });
}

}  // namespace tandem
