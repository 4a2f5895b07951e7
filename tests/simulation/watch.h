// Invariants that are checked between steps.
//
// Invariants 1 and 6 (pages: free + used + cached = total, owners as counted, none written by two
// or released under a pass), 2 (idle: nothing used, no coroutine), 5 (ended requests' pages are
// free within a step), 7 (a pass counts and reads committed rows), 9 (budgets), 10 (progress
// without overtaking), 11 (fair shares, first in first out), 12 (bounded queues), 14 (metrics equal
// the events).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/pass/backend.h"
#include "tests/simulation/heard.h"
#include "tests/simulation/world.h"

namespace tandem::simulation {

class Watch {
 public:
  Watch(World* world, const std::map<RequestId, std::shared_ptr<Heard>>* heard)
      : world_(world), heard_(heard) {}

  // Called when a batch is launched and when it is done.
  void on_batch(int device, const Batch& batch);
  void on_batch_done(int device);
  void after_step();
  void at_end();

 private:
  void check_pages();
  void check_gone();
  void check_turns();
  void check_order();
  void check_progress(const SequenceRun& run, int first_priority);
  void check_metrics();

  World* const world_;
  const std::map<RequestId, std::shared_ptr<Heard>>* const heard_;
  struct LaunchedBatch {  // a batch
    std::set<RequestId> requests;
    std::vector<std::pair<ModelId, PageId>> read;
  };
  std::map<int, std::deque<LaunchedBatch>> under_way_;  // by device, oldest first
  int64_t batches_done_ = 0;
  std::map<RequestId, int64_t> last_active_;  // batches_done_ when it last ran or was blocked
  struct Observed {
    SequenceRun::State state;
    int64_t rounds;
  };
  std::map<RequestId, Observed> states_;  // after the last step
  std::set<RequestId> admitted_;
  std::map<std::string, int64_t> both_wait_since_;  // service by client when both started to wait
};

}  // namespace tandem::simulation
