// The passes of one sequence: submitted ones, and completed ones kept for reuse.
//
// Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/pass/pass.h"
#include "engine/sched/cache_set.h"
#include "engine/sched/flight.h"
#include "engine/sched/loop_services.h"

namespace tandem {

class SequencePasses {
 public:
  // The passes point to `sequence`, which outlives them.
  SequencePasses(SequenceRun* sequence, RequestId id, int priority)
      : sequence_(sequence), id_(id), priority_(priority) {}

  // An empty pass with the buffers of a completed one.
  Pass blank();
  // Recomputation restores rows that preemption took: statistics count its time, but no pass.
  enum Purpose : bool { kRequested, kRecompute };
  // Counts the pass in its cache and queues it on the device of its model. It reads the cache
  // `memory`, unless it names another.
  Flight* submit(Pass&& pass, CacheSet& caches, LoopServices* loop, Purpose purpose = kRequested,
                 CacheId memory = {});
  void done(PassFlight& flight);
  // Makes the flight spare, unless it is under way, its ticket exists or its values may be named.
  void reuse(PassFlight* flight);
  int under_way() const { return under_way_; }  // submitted and not done
  // The number of the last pass of the large model, or of the small one, that is done; 0: none.
  int last_done(bool large) const { return last_done_[large ? 0 : 1]; }

  // Calls f with each pass whose values are on a device. Later passes may not name them.
  template <class F>
  void forget_values(F f) {
    for (PassFlight* const flight : shared_) {
      f(*flight);
      flight->shared = false;
      reuse(flight);
    }
    shared_.clear();
  }

 private:
  PassFlight* take_spare();
  void find_awaited(PassFlight* flight) const;
  static void place_values(PassFlight& flight);

  int under_way_ = 0;
  int submitted_ = 0;  // passes so far
  int last_done_[2] = {0, 0};
  absl::InlinedVector<PassFlight*, 2> spare_;  // of all_: completed, ready for reuse
  std::vector<PassFlight*> shared_;            // of all_: their values are on a device
  SequenceRun* const sequence_;
  const RequestId id_;
  const int priority_;
  std::vector<std::unique_ptr<PassFlight>> all_;  // its size is the most passes held at one time
};

}  // namespace tandem
