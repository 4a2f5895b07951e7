// Moves of a batch: rows between pages of a pool, of pools of a device, and of several devices.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/queue/staging.h"
#include "engine/backend/torch/row_move.h"
#include "engine/pass/backend.h"

namespace tandem {

// Of one device queue.
class Mover {
 public:
  // Finds a model's pool; null: unknown.
  using PoolOf = std::function<const KvPool*(ModelId)>;

  // device queue: null: the host's. Outlives this.
  explicit Mover(const DeviceQueue* device_queue)
      : device_queue_(device_queue), staging_(queue_of(device_queue)) {}

  // Puts moves on the device queue, in their order: one copy of the list of all, and a launch for
  // those of one kind that stand together. The last call's are done by then.
  //
  // A `from` of another device is read as it lies there, behind the batches of its device queue.
  // Nothing may write those rows before this device queue's batch is done. INTERNAL: a move that
  // leaves its page, or between pools of different geometry; nothing is moved.
  absl::Status put(std::span<const Move> moves, const PoolOf& pool_of);

 private:
  // Neighbours of one kind: [first, first + n) of the list.
  struct Run {
    Store store = Store::kKv;
    const KvPool* from = nullptr;
    const KvPool* to = nullptr;
    size_t first = 0;
    int n = 0;
  };

  absl::Status list(std::span<const Move> moves, const PoolOf& pool_of);

  const DeviceQueue* device_queue_;
  Staging staging_;
  std::vector<RowMove> list_;
  std::vector<Run> runs_;
};

}  // namespace tandem
