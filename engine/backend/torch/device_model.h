// A model on a device: weights, KV pool and the executor of its batches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "engine/backend/torch/adapter.h"
#include "engine/backend/torch/executor.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/decoder_weights.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/base/mutex.h"
#include "engine/pass/backend.h"

namespace tandem {

struct DeviceModel {
  DecoderConfig config;
  // The same with all layers and the names of the file: what LoRA adapters are checked against.
  DecoderConfig whole;
  std::shared_ptr<const DecoderWeights> weights;
  at::ScalarType kv_type = at::kFloat;
  DType adapter_dtype = DType::kAuto;  // as in ModelConfig
  bool shares_weights = false;
  // Weights that TorchDevice::pack_weights() may pack; null: decided.
  std::shared_ptr<DecoderWeights> unpacked;
  int64_t packed_bytes = 0;  // of the packed copy of the weights
  std::unique_ptr<Model> model;
  ModelExtras extras;
  ModelShape shape;
  PoolSize size;
  std::unique_ptr<KvPool> pool;  // null before allocate_pools(), like the next one
  std::unique_ptr<Executor> executor;
};

// The models of a device. Thread-safe: models come and go while batches of others run. A reference
// stays valid until the model is erased.
class DeviceModels {
 public:
  DeviceModel* find(ModelId id) const {
    const MutexLock lock(&mutex_);
    const auto it = models_.find(id);
    return it == models_.end() ? nullptr : it->second.get();
  }
  DeviceModel& at(ModelId id) const {
    const MutexLock lock(&mutex_);
    return *models_.at(id);
  }
  DeviceModel& put(ModelId id, DeviceModel model) {
    const MutexLock lock(&mutex_);
    std::unique_ptr<DeviceModel>& place = models_[id];
    place = std::make_unique<DeviceModel>(std::move(model));
    return *place;
  }
  void erase(ModelId id) {
    MutexLock lock(&mutex_);
    const auto gone = models_.extract(id);  // freed without the lock
    lock.unlock();
  }
  template <class F>
  void for_each(const F& f) const {
    const MutexLock lock(&mutex_);
    for (const auto& [id, model] : models_) f(id, *model);
  }

 private:
  mutable Mutex mutex_;
  std::map<ModelId, std::unique_ptr<DeviceModel>> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
