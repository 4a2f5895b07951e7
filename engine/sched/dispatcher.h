// The device queues, and the models that lie on the devices: which pass goes where, and what comes
// of it.
//
// lost() and at_one_batch() are thread-safe; the rest is the loop thread's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/sched/batch_cost.h"
#include "engine/sched/device_scheduler.h"
#include "engine/sched/metrics.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

// A model that sequences may name in their roles.
struct LoopModel {
  ModelId id;
  DeviceId device;
  ModelSeries* series = nullptr;  // may be null
  bool prefix_cache = true;
  ModelId replica_of;  // invalid: none of another, see Device queues::replicas()
};

class Dispatcher {
 public:
  using Done = std::function<void(DeviceId device, BatchResult result)>;

  // devices[i] is DeviceId(i); models by ModelId. `copied` counts bytes that come from other
  // devices; `done` hears of finished batches, from any thread.
  Dispatcher(const std::vector<Backend*>& devices, const std::vector<LoopModel>& models,
             const BatchLimits& limits, bool log_frees, Counter* copied, Done done);

  ModelPools& pools(ModelId model) { return *models_[model.index()].pools; }
  const ModelPools& pools(ModelId model) const { return *models_[model.index()].pools; }
  DeviceId device_of(ModelId model) const { return models_[model.index()].device; }
  size_t models() const { return models_.size(); }
  // Who may play a role that names this model: the model itself, and behind it its replicas, the
  // same model on other devices. A replica's own name means itself.
  std::span<const ModelId> replicas(ModelId model) const { return models_[model.index()].replicas; }
  bool has_replicas() const { return has_replicas_; }  // any model
  // Rows of passes that wait for this device.
  int64_t pending_rows(DeviceId device) const { return schedulers_[device.index()].pending_rows(); }
  bool busy() const;
  bool lost(DeviceId device) const { return schedulers_[device.index()].lost(); }
  Duration at_one_batch(DeviceId device, TimePoint now) const {
    return schedulers_[device.index()].at_one_batch(now);
  }
  // UNAVAILABLE when a device of one of its models is lost, with those of all its replicas.
  absl::Status can_serve(const SequenceSpec& spec) const;

  // A pass goes to the device queue of its device.
  void enqueue(PassFlight* flight) { schedulers_[flight->device.index()].enqueue(flight); }
  // Takes back the passes of a sequence that no device works on yet.
  void remove(const SequenceRun* run);
  // The sequence will not name the values of this pass any more.
  void forget(const PassFlight& flight);
  // Has its moves made as soon as the rows that they read are there. Returns the bytes that come
  // from another device.
  int64_t begin(std::shared_ptr<Transfer> transfer);

  // Gives devices their next batches. False: nobody can have one.
  bool launch(TimePoint now);

  struct Finished {
    std::vector<PassFlight*> done;  // readouts are there
    std::vector<std::pair<SequenceRun*, absl::Status>> failed;
    bool lost = false;  // the device, with this batch
  };
  // What was said to `done`. Passes with rows left are pending again, and so are all when the
  // batch was too large for the device's memory.
  Finished finish(DeviceId device, BatchResult result, TimePoint now);

  void update_gauges();
  // Recounts every page. Returns what is wrong; empty: nothing. `runs`: all that hold any.
  std::string check_pages(const std::vector<const SequenceRun*>& runs) const;

 private:
  void launch(DeviceScheduler& scheduler, const DeviceScheduler::LaunchedBatch& next);
  int64_t bytes_from_elsewhere(std::span<const Move> moves) const;
  int64_t bytes_from_elsewhere(const Batch& batch) const;
  struct PendingTransfer {
    std::shared_ptr<Transfer> transfer;
    DeviceScheduler* source;
    DeviceScheduler* target;
    uint64_t after;    // of the source's log: moves that go before
    uint64_t end = 0;  // of the target's log, where it is logged
  };
  static bool advance(PendingTransfer& transfer);
  void advance_transfers();
  DeviceScheduler& scheduler_of(const ModelPools& pools) {
    return schedulers_[device_of(pools.model).index()];
  }

  struct Model {
    std::unique_ptr<ModelPools> pools;
    DeviceId device;
    ModelSeries* series;
    const ModelShape* shape;
    BatchCost cost = {};
    std::vector<ModelId> replicas = {};  // itself first
  };

  Counter* const copied_;
  const Done done_;
  std::deque<DeviceScheduler>
      schedulers_;             // by device; they do not move, because pools hold their move logs
  std::vector<Model> models_;  // by model
  bool has_replicas_ = false;
  std::vector<PendingTransfer> transfers_;  // oldest first
};

}  // namespace tandem
