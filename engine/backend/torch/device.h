// A device that runs models with LibTorch: cpu:i or cuda:i. No LibTorch header is needed to use it.
//
//   auto device = TorchDevice::create(config, shared);  // one per device
//   device->load(id, model_config, progress);           // weights: from here on shape(id)
//   device->allocate_pools(id, size);                   // as many pages as the host decides
//   device->launch(batch, done);
//
// Each device has one thread, its device queue, which runs batches in launch order and calls
// `done`. On CPU the device queue's kernels and products use a team of DeviceConfig::threads
// threads of the device queue's own: several CPU devices do not share threads, so their counts
// should add up to the machine's.
//
// Exceptions of LibTorch do not leave this class: at loading they become the returned status, in a
// batch BatchResult::status (RESOURCE_EXHAUSTED for memory, UNAVAILABLE for a lost device, INTERNAL
// for others).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/layer_shard.h"
#include "engine/backend/torch/shared.h"
#include "engine/base/config.h"
#include "engine/pass/backend.h"

namespace tandem {

struct DecoderConfig;
class TensorSource;

class TorchDevice final : public Backend {
 public:
  using Progress = std::function<void(absl::string_view line)>;

  // Makes a CUDA device's context. NOT_FOUND: no such CUDA device, or a build without CUDA.
  // FAILED_PRECONDITION: one that this build has no machine code for. Others: as the device says.
  static absl::StatusOr<std::unique_ptr<TorchDevice>> create(const DeviceConfig& config,
                                                             std::shared_ptr<TorchShared> shared);
  ~TorchDevice() override;  // after the last batch of all devices that share is done

  // Loads the weights of config.path, of the layers that config names, converted to config.dtype,
  // into memory of the device, and with them the model's extras. `model`
  // is new, and unique among the devices that share. One line of progress per model, begun with its
  // name. Errors name the file or field. Not while batches are in flight.
  // shards: of the devices that config.shards names; this one is the first.
  absl::Status load(ModelId model, const ModelConfig& config, const Progress& progress = {},
                    const std::vector<DeviceConfig>& shards = {});

  // The same of weights that are not in a Hugging Face directory. tied: the head is the
  // embedding. kv_dtype: as ModelConfig::kv_dtype.
  // shards: of its layers; empty: all are this device's.
  absl::Status load_decoder(ModelId model, const std::string& name, const DecoderConfig& config,
                            bool tied, const TensorSource& source, DType dtype, int page_rows = 16,
                            DType kv_dtype = DType::kAuto,
                            const std::vector<LayerShard>& shards = {});

  // The encoder of a loaded model that reads a memory (ModelShape::reads_memory), as a model of its
  // own, whose caches passes of `decoder` then name as their memories. It takes over the decoder's
  // projectors.
  absl::Status load_encoder(ModelId encoder, ModelId decoder);

  // To be called once for each model before its first batch; size.page_rows is the page_rows of its
  // ModelConfig. RESOURCE_EXHAUSTED: not enough memory.
  absl::Status allocate_pools(ModelId model, const PoolSize& size);

  // Keeps a second copy of weights, packed for products of few rows, model by model where it fits
  // into `most` bytes; those of a device with DeviceConfig::packed_products were decided on at
  // load. Bytes that it took. Not while batches are in flight.
  absl::StatusOr<int64_t> pack_weights(int64_t most);

  // What allocate_pools() takes besides the pages that it is asked for: those of rows that fill up
  // steps (StepGraphs). REQUIRES: loaded.
  int64_t scratch_bytes(ModelId model) const;

  // Memory that is free now on the device: what weights have left over for pools.
  int64_t free_bytes() const;

  // Sizes of a model's pages for shape().page_bytes are known after load(); pool() after
  // allocate_pools(). REQUIRES: loaded.
  const ModelShape& shape(ModelId model) const override;
  const PoolSize& pool(ModelId model) const override;
  void launch(const Batch& batch, Done done) override;

 private:
  struct Impl;
  explicit TorchDevice(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
