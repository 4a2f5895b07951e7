// A device that runs models with LibTorch: cpu:i or cuda:i. No LibTorch header is needed to use it.
//
//   auto device = TorchDevice::create(config, shared);  // one per device queue
//   device->load(id, model_config, progress);           // then shape(id) is valid
//   device->allocate_pools(id, size);
//   device->launch(batch, done);
//
// Each device queue has one thread, which runs batches in launch order and calls `done`. On CPU its
// kernels and products use a team of DeviceConfig::threads threads. CPU devices do not share
// threads, so their counts should add up to the machine's cores.
//
// LibTorch's exceptions do not leave this class. While loading they become the returned status, in
// a batch BatchResult::status: RESOURCE_EXHAUSTED for memory, UNAVAILABLE for a lost device,
// INTERNAL for others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/graph_counts.h"
#include "engine/backend/torch/layer_shard.h"
#include "engine/backend/torch/shared.h"
#include "engine/base/config.h"
#include "engine/pass/backend.h"

namespace tandem {

struct DecoderConfig;
struct LoraFile;
class TensorSource;

class TorchDevice final : public Backend {
 public:
  using Progress = std::function<void(absl::string_view line)>;

  // Makes a CUDA device's context. NOT_FOUND: no such CUDA device, or a build without CUDA.
  // FAILED_PRECONDITION: a device or driver that this build does not support. INVALID_ARGUMENT: a
  // cpu_target that the machine does not have, or other than that of devices in `shared`. Other
  // errors are the device's.
  static absl::StatusOr<std::unique_ptr<TorchDevice>> create(const DeviceConfig& config,
                                                             std::shared_ptr<TorchShared> shared);
  ~TorchDevice() override;  // REQUIRES: no batch of a device in `shared` is in flight

  // Loads the weights of config.path into the device's memory: the layers that config names,
  // converted to config.dtype, and the model's extras. Weights are shared with other queues of the
  // device; INVALID_ARGUMENT if these have another DeviceConfig::packed_products. `model` is new,
  // and unique among the devices in `shared`. Reports one line of progress, which starts with the
  // model's name. Errors name the file or field; after one, unload() frees what was loaded. Batches
  // of other models may run.
  // shards: the devices that config.shards names; this one is the first.
  absl::Status load(ModelId model, const ModelConfig& config, const Progress& progress = {},
                    const std::vector<DeviceConfig>& shards = {});

  // Loads weights from `source`, which are not shared. tied: the head is the embedding. kv_dtype:
  // as ModelConfig::kv_dtype. shards: of its layers; empty: all are on this device.
  absl::Status load_decoder(ModelId model, const std::string& name, const DecoderConfig& config,
                            bool tied, const TensorSource& source, DType dtype, int page_rows = 16,
                            DType kv_dtype = DType::kAuto,
                            const std::vector<LayerShard>& shards = {});

  // Adds the encoder of a loaded encoder-decoder model (ModelShape::reads_memory) as a separate
  // model, whose caches are the memories of the decoder's passes. It takes the decoder's
  // projectors.
  absl::Status load_encoder(ModelId encoder, ModelId decoder);

  // REQUIRES: called once for each model, before its first batch; size.page_rows is
  // ModelConfig::page_rows. RESOURCE_EXHAUSTED: not enough memory.
  absl::Status allocate_pools(ModelId model, const PoolSize& size);

  // Frees a loaded model, with or without pools; an encoder before its decoder. Unknown ids are
  // ignored. REQUIRES: no batch of any device names it, and none will until load()
  void unload(ModelId model);

  // About the bytes that the weights of load() will take, from the headers of the files. Errors as
  // those of load().
  absl::StatusOr<int64_t> weight_bytes(const ModelConfig& config) const;

  // LoRA adapters while batches run. These five are thread-safe.
  // The files of an adapter of `model`: their headers alone, and a copy with all numbers checked.
  absl::StatusOr<LoraFile> open_lora_header(ModelId model, const std::string& path) const;
  absl::StatusOr<LoraFile> read_lora(ModelId model, const std::string& path) const;
  // Memory that the adapter will take. Reads no numbers.
  int64_t lora_bytes(ModelId model, const LoraFile& file) const;
  // Loads it as `id`, which the model never had. Later batches may name it.
  absl::Status load_lora(ModelId model, LoraId id, const LoraFile& file);
  // Frees it. REQUIRES: no batch names it
  void unload_lora(ModelId model, LoraId id);

  // Adds packed copies of weights for products of few rows: of each model whose copy fits into what
  // is left of `most` bytes. With DeviceConfig::packed_products, load() has decided already.
  // Returns the bytes of the copies. REQUIRES: no batch is in flight
  absl::StatusOr<int64_t> pack_weights(int64_t most);

  // Bytes that a model takes besides the requested pages: scratch of StepGraphs, and of the
  // attention of prompts. REQUIRES: loaded
  int64_t scratch_bytes(ModelId model) const;

  // Free memory of the device.
  int64_t free_bytes() const;

  // REQUIRES: pools are allocated; no batch is in flight
  GraphCounts graph_counts(ModelId model) const;

  // pool(): valid after allocate_pools(). REQUIRES: loaded
  const ModelShape& shape(ModelId model) const override;
  const PoolSize& pool(ModelId model) const override;
  void launch(const Batch& batch, Done done) override;

 private:
  struct Impl;
  explicit TorchDevice(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
