// State that the devices of one process share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/backend/torch/queue/queue.h"
#include "engine/base/config.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"
#include "engine/sampling/value_store.h"

namespace tandem {

struct DecoderWeights;
struct KvPool;

// Thread-safe. Outlives the devices.
class TorchShared {
 public:
  // Makes the queue of a device in place of Platform::open_queue(), for tests on CPU devices.
  using MakeQueue = std::function<std::unique_ptr<Queue>(const DeviceConfig&)>;
  explicit TorchShared(MakeQueue make_queue = {}) : make_queue_(std::move(make_queue)) {}

  const MakeQueue& make_queue() const { return make_queue_; }
  ValueStore& values() { return values_; }

  // Pools by model, for moves between devices. A pool is valid until its device is destroyed, after
  // the last batch of every device.
  void add_pool(ModelId model, KvPool* pool) {
    const MutexLock lock(&mutex_);
    pools_[model] = pool;
  }
  void remove_pool(ModelId model) {
    const MutexLock lock(&mutex_);
    pools_.erase(model);
  }
  KvPool* pool(ModelId model) const {
    const MutexLock lock(&mutex_);
    const auto it = pools_.find(model);
    return it == pools_.end() ? nullptr : it->second;
  }

  // The GPUs opened before this one, which is among them for later calls.
  std::set<int> devices_before(int index) {
    const MutexLock lock(&mutex_);
    std::set<int> before = gpus_;
    before.erase(index);
    gpus_.insert(index);
    return before;
  }

  // Weights that several device queues of one device read.
  struct Weights {
    std::shared_ptr<const DecoderWeights> weights;  // null: none are loaded
    std::string device;                             // DeviceConfig::name() of the queue that loaded
    std::optional<bool> packed_products;            // DeviceConfig::packed_products of that queue
  };
  // key: file, type and device.
  Weights weights(const std::string& key) const {
    const MutexLock lock(&mutex_);
    const auto it = weights_.find(key);
    if (it == weights_.end()) return {};
    return {it->second.weights.lock(), it->second.device, it->second.packed_products};
  }
  void share_weights(const std::string& key, const std::shared_ptr<const DecoderWeights>& weights,
                     std::string device, std::optional<bool> packed_products) {
    const MutexLock lock(&mutex_);
    weights_[key] = {weights, std::move(device), packed_products};
  }

  // The target of cpu/targets.h that all devices use: of the first call. The result is that target.
  std::string agree_on_cpu_target(const std::string& target) {
    const MutexLock lock(&mutex_);
    if (!cpu_target_.has_value()) cpu_target_ = target;
    return *cpu_target_;
  }

 private:
  struct SharedWeights {
    std::weak_ptr<const DecoderWeights> weights;
    std::string device;
    std::optional<bool> packed_products;
  };

  const MakeQueue make_queue_;
  ValueStore values_;
  mutable Mutex mutex_;
  std::map<ModelId, KvPool*> pools_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, SharedWeights> weights_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::string> cpu_target_ ABSL_GUARDED_BY(mutex_);
  std::set<int> gpus_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
