// The thread of a device queue: runs batches in launch order.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/async/worker.h"
#include "engine/backend/torch/device_model.h"
#include "engine/backend/torch/mover.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/shared.h"
#include "engine/pass/backend.h"

namespace tandem {

class BatchRunner {
 public:
  // name: of the device, for errors. queue: null on a CPU device. models: of the device. around:
  // runs the thread's loop, on the thread. All outlive this.
  BatchRunner(std::string name, const DeviceQueue* queue, TorchShared& shared,
              const DeviceModels& models, const Worker::Around& around);

  // As Backend::launch(). `done` is called on the thread, in launch order.
  void launch(const Batch& batch, Backend::Done done);

  // Calls `f` on the thread, between two batches, and waits for its end. It must not throw.
  void run(const std::function<void()>& f);

 private:
  // A batch on the device whose results the host has not read yet.
  struct InFlight {
    const Batch* batch;
    Executor* executor;
    Backend::Done done;
    std::chrono::steady_clock::time_point start;
    int64_t number;
  };

  // All on the thread.
  void begin(const Batch& batch, Backend::Done done);
  // Runs what precedes the works of a batch. Null: there are no works.
  absl::StatusOr<Executor*> prepare(const Batch& batch);
  void finish_up_to(int64_t number);
  void finish_oldest();
  BatchResult ended(const Batch& batch, BatchResult result,
                    std::chrono::steady_clock::time_point start);
  absl::Status wait_after(absl::Status failure) const;

  const std::string name_;
  const DeviceQueue* const queue_;
  TorchShared& shared_;
  const DeviceModels& models_;
  Mover mover_;
  bool out_of_memory_ = false;      // the last batch
  std::deque<InFlight> in_flight_;  // oldest first
  int64_t begun_ = 0;
  std::chrono::steady_clock::time_point last_end_;
  Worker thread_;  // last: ends before the members it uses
};

}  // namespace tandem
