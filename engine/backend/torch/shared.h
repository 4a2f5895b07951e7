// What the devices of one process share.
#pragma once

#include <functional>
#include <map>
#include <memory>
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
  // Makes a device's queue in place of the device's own: tests have one for CPU devices.
  using MakeQueue = std::function<std::unique_ptr<Queue>(const DeviceConfig&)>;
  explicit TorchShared(MakeQueue make_queue = {}) : make_queue_(std::move(make_queue)) {}

  const MakeQueue& make_queue() const { return make_queue_; }
  ValueStore& values() { return values_; }

  // Pools by model, for moves between devices. A pool stays until its device is destroyed, which
  // must be after the last batch of every device.
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

  // CUDA devices that were there before this one. index: which is there from now on
  std::set<int> cuda_devices_before(int index) {
    const MutexLock lock(&mutex_);
    std::set<int> before = cuda_devices_;
    before.erase(index);
    cuda_devices_.insert(index);
    return before;
  }

  // Weights that several device queues of one device read. `key` says where they come from, how
  // they are kept and on which device; null: nobody has them any more.
  std::shared_ptr<const DecoderWeights> weights(const std::string& key) const {
    const MutexLock lock(&mutex_);
    const auto it = weights_.find(key);
    return it == weights_.end() ? nullptr : it->second.lock();
  }
  void keep_weights(const std::string& key, const std::shared_ptr<const DecoderWeights>& weights) {
    const MutexLock lock(&mutex_);
    weights_[key] = weights;
  }

 private:
  const MakeQueue make_queue_;
  ValueStore values_;
  mutable Mutex mutex_;
  std::map<ModelId, KvPool*> pools_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<const DecoderWeights>> weights_ ABSL_GUARDED_BY(mutex_);
  std::set<int> cuda_devices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
