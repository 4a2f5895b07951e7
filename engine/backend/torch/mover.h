// Moves of a batch: rows between pages of one pool, of pools of one device, or of several devices.
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

// One per device queue, used by its thread.
class Mover {
 public:
  // The pool of a model; null: unknown.
  using PoolOf = std::function<const KvPool*(ModelId)>;

  // device_queue: outlives this; null: the host's
  explicit Mover(const DeviceQueue* device_queue)
      : device_queue_(device_queue), staging_(queue_of(device_queue)) {}

  // Puts moves on the device queue, in order: one copy of the whole list, then a launch per run of
  // moves of one kind. REQUIRES: the moves of the last call are done
  //
  // Rows of another device are read in place, after the batches of its device queue. They must not
  // be written before this device queue's batch is done. INTERNAL: a move beyond its page, or
  // between pools of different geometry, or a page of another device to or from the host; nothing
  // is moved.
  absl::Status put(std::span<const Move> moves, const PoolOf& pool_of);

 private:
  // Consecutive moves of one kind: [first, first + n) of the list. Or a page of `from` to or from
  // the host.
  struct Run {
    const Move* page = nullptr;
    Store store = Store::kKv;
    const KvPool* from = nullptr;
    const KvPool* to = nullptr;
    size_t first = 0;
    int n = 0;
  };

  absl::Status list(std::span<const Move> moves, const PoolOf& pool_of);
  absl::Status list_page(const Move& move, const PoolOf& pool_of);

  const DeviceQueue* device_queue_;
  Staging staging_;
  std::vector<RowMove> list_;
  std::vector<Run> runs_;
};

}  // namespace tandem
