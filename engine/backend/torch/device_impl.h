// The state of a TorchDevice, which device.cpp and device_load.cpp share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/batch_runner.h"
#include "engine/backend/torch/device.h"
#include "engine/backend/torch/device_model.h"
#include "engine/backend/torch/layer_shard.h"
#include "engine/backend/torch/platform.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/shared.h"
#include "engine/backend/torch/weights/lora_file.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "engine/base/config.h"

namespace tandem {

// Threads of the team of a device's queue.
int team_size(const DeviceConfig& config, const Platform& platform);

struct TorchDevice::Impl {
  // The weights of a decoder, and how they are held.
  struct DecoderSource {
    const std::string& name;  // of the model
    const DecoderConfig& config;
    bool tied = false;  // the head is the embedding
    const TensorSource& tensors;
    std::string path;  // of weights that device queues of this device share; empty: not shared
    DType dtype = DType::kAuto;
    int page_rows = 16;
    DType kv_dtype = DType::kAuto;
    const std::vector<LayerShard>& shards;  // of its layers; empty: all are on this device
  };

  // opened: the device's queue; null: a CPU device
  Impl(const DeviceConfig& config, const Platform& platform, std::shared_ptr<TorchShared> shared,
       OpenedQueue opened);

  absl::Status load_decoder(ModelId model, const DecoderSource& source);
  absl::Status allocate_pools(ModelId model, const PoolSize& size);
  // Weights on this device alone, shared if possible.
  absl::Status load_weights(DeviceModel& loaded, const DecoderSource& source,
                            const WeightStore& store);
  absl::Status load_extra(ModelId model, const std::string& name, const ExtraConfig& extra,
                          const DecoderConfig& base, const std::string& fingerprint);
  // Returns its bytes.
  absl::StatusOr<int64_t> load_lora(DeviceModel& loaded, LoraId id, const LoraFile& file) const;
  // Sets what follows from a loaded model.
  void complete(DeviceModel& loaded, int page_rows) const;
  int64_t scratch_pages(const DeviceModel& loaded) const;  // 0: its steps are not replayed

  const DeviceConfig config;
  const Platform& platform;
  const at::Device device;
  const std::shared_ptr<TorchShared> shared;
  const std::unique_ptr<const DeviceQueue> queue;  // null: a CPU device
  const std::unique_ptr<AnswerCache> answers;      // null: a batch ends before the next begins
  DeviceModels models;
  std::string peers;   // a line of progress on access to other devices' memory; "": reported
  BatchRunner runner;  // last: its thread ends before what it uses
};

}  // namespace tandem
