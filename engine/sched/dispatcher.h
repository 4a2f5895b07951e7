// The schedulers of all devices, and the models on them: routes passes, launches batches and
// processes their results.
//
// lost() and at_one_batch() are thread-safe; the rest is for the loop thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/decode/pacing/batch_time.h"
#include "engine/sched/batch_cost.h"
#include "engine/sched/device_scheduler.h"
#include "engine/sched/loop_model.h"
#include "engine/sched/metrics.h"
#include "engine/sched/page_read.h"
#include "engine/sched/pool_edit.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

class Dispatcher {
 public:
  using Done = std::function<void(DeviceId device, BatchResult result)>;
  using LateDone = std::function<void(PassFlight* flight, WorkResult result)>;

  // devices[i] is DeviceId(i); models by ModelId. `copied` counts bytes copied between devices.
  // `done` is called for finished batches and `late_done` for late answers, from any thread.
  Dispatcher(const std::vector<Backend*>& devices, const std::vector<LoopModel>& models,
             const BatchLimits& limits, bool log_frees, Counter* copied, Done done,
             LateDone late_done);

  // Adds models that the devices have. An id is new, or that of a model that was removed.
  void add_models(const std::vector<LoopModel>& models);
  // Removes models that no sequence has any more. `done` is called when no device has works or
  // moves with their pages, so that the devices may forget them.
  void remove_models(std::vector<ModelId> models, std::function<void()> done);
  // Carries out what remove_models() asked for, where possible. True: models were removed.
  bool advance_removals() { return !removals_.empty() && remove_unused(); }

  bool has_model(ModelId model) const {
    return model.index() < models_.size() && models_[model.index()].pools != nullptr;
  }
  ModelPools& pools(ModelId model) { return *models_[model.index()].pools; }
  const ModelPools& pools(ModelId model) const { return *models_[model.index()].pools; }
  DeviceId device_of(ModelId model) const { return models_[model.index()].device; }
  size_t models() const { return models_.size(); }  // also places of removed ones
  // The models that may play a role of this model: itself first, then its replicas on other
  // devices. Of a replica: itself alone.
  std::span<const ModelId> replicas(ModelId model) const { return models_[model.index()].replicas; }
  bool has_replicas() const { return has_replicas_; }  // of any model
  // Rows of passes that are pending on this device.
  int64_t pending_rows(DeviceId device) const { return schedulers_[device.index()].pending_rows(); }
  // Adds `n` sequences of this spec to those that use their large model.
  void count_sequence(const SequenceSpec& spec, int n);
  // The sequences that use the model, or its share of those that use it or a replica.
  ModelLoad load(ModelId model) const;
  // Of the model's batches. REQUIRES: the loop does not run.
  BatchTime& batch_time(ModelId model) { return models_[model.index()].time; }
  bool busy() const;
  bool lost(DeviceId device) const { return schedulers_[device.index()].lost(); }
  Duration at_one_batch(DeviceId device, TimePoint now) const {
    return schedulers_[device.index()].at_one_batch(now);
  }
  // UNAVAILABLE if one of its models is on a lost device, and so are all replicas.
  absl::Status can_serve(const SequenceSpec& spec) const;

  void enqueue(PassFlight* flight) { schedulers_[flight->device.index()].enqueue(flight); }
  // Removes the passes of a sequence that are not launched.
  void remove(const SequenceRun* run);
  // No later pass names the values of this pass.
  void forget(const PassFlight& flight);
  // Makes its moves when the rows that they read are there. Returns the bytes from other devices.
  int64_t begin(std::shared_ptr<Transfer> transfer);

  // Reads pages with the next batch of their device.
  void read(PageRead read);
  // Changes pools. The moves go with the next batch of their device.
  void edit(PoolEdit edit);

  // Launches all batches that can run now. False: none.
  bool launch(TimePoint now);

  struct Finished {
    std::vector<PassFlight*> done;  // with their readouts
    std::vector<std::pair<SequenceRun*, absl::Status>> failed;
    bool lost = false;  // the device, with this batch
    void clear() { done.clear(), failed.clear(), lost = false; }
  };
  // Processes what `done` received. Passes with rows left are pending again; so are all passes of a
  // batch that was too large for the device's memory. Overwrites `finished`, and reuses its memory.
  void finish(DeviceId device, BatchResult&& result, TimePoint now, Finished* finished);
  // Processes what `late_done` received, likewise.
  void finish_late(PassFlight* flight, WorkResult&& result, Finished* finished);

  void update_gauges();
  // Recounts every page. Returns the first error; empty: none. `runs`: all that hold pages.
  std::string check_pages(const std::vector<const SequenceRun*>& runs) const;

 private:
  void launch(DeviceScheduler& scheduler, const DeviceScheduler::LaunchedBatch& next);
  // The answers of a chunk are there.
  void answered(PassFlight& flight, const Work& work, Readout&& readout, Finished* finished);
  int64_t bytes_from_elsewhere(std::span<const Move> moves) const;
  int64_t bytes_from_elsewhere(const Batch& batch) const;
  struct PendingTransfer {
    std::shared_ptr<Transfer> transfer;
    DeviceScheduler* source;
    DeviceScheduler* target;
    uint64_t after;    // source log position that must be done first
    uint64_t end = 0;  // target log position after its moves
  };
  static bool advance(PendingTransfer& transfer);
  struct PendingRemoval {
    std::vector<ModelId> models;
    std::function<void()> done;
    // Log positions by device after the last moves of the models; empty: not known yet.
    std::vector<std::pair<const DeviceScheduler*, uint64_t>> ends = {};
  };
  bool advance(PendingRemoval& removal);
  bool remove_unused();
  void advance_transfers();
  void end_reads(const DeviceScheduler& scheduler, const absl::Status& status);
  DeviceScheduler& scheduler_of(const ModelPools& pools) {
    return schedulers_[device_of(pools.model).index()];
  }

  struct Model {
    std::unique_ptr<ModelPools> pools = nullptr;  // null: the model was removed
    DeviceId device = {};
    ModelSeries* series = nullptr;
    const ModelShape* shape = nullptr;
    ModelId original = {};  // the model that this one replicates, or itself
    BatchCost cost = {};
    BatchTime time = {};
    int sequences = 0;  // of an original: those whose large model it or a replica is
    std::vector<ModelId> replicas = {};  // itself first
  };

  Counter* const copied_;
  const Done done_;
  const LateDone late_done_;
  int late_ = 0;                            // works whose answers are late
  std::deque<DeviceScheduler> schedulers_;  // by device; not moved, as pools point to their logs
  std::deque<Model> models_;                // by model; not moved, as methods keep their times
  bool has_replicas_ = false;
  std::vector<PendingTransfer> transfers_;  // oldest first
  std::vector<PendingRemoval> removals_;    // oldest first
  struct PendingRead {
    const DeviceScheduler* scheduler;
    uint64_t end;             // log position after its moves
    std::vector<bool> found;  // of an edit: empty
    std::function<void(absl::StatusOr<std::vector<bool>>)> done;
  };
  std::vector<PendingRead> reads_;  // and edits, oldest first
};

}  // namespace tandem
