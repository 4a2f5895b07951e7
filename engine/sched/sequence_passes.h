// The passes of one sequence: submitted ones, and the memory of those that are over.
//
// Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/pass/pass.h"
#include "engine/sched/cache_set.h"
#include "engine/sched/flight.h"
#include "engine/sched/run_host.h"

namespace tandem {

class SequencePasses {
 public:
  // Whose they are. The loop finds it in its passes; it outlives them.
  SequencePasses(SequenceRun* sequence, RequestId id, int priority)
      : sequence_(sequence), id_(id), priority_(priority) {}

  // An empty pass, with the memory of one that is over.
  Pass blank();
  // Books the pass and gives it to the device of its model. A refill makes again what was made
  // before: it takes time, and no statistics count it as a pass.
  enum Why : bool { kAsked, kRefill };
  Flight* submit(Pass&& pass, CacheSet& caches, RunHost* host, Why why = kAsked);
  void done(PassFlight& flight);
  // Its memory is used again, if nobody needs it any more.
  void reuse(PassFlight* flight);
  int under_way() const { return under_way_; }  // submitted and not done

  // Calls f with each pass whose values stay on a device: nobody may name them from here on.
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
  absl::InlinedVector<PassFlight*, 2> spare_;  // of all_, those that are over
  std::vector<PassFlight*> shared_;            // and those whose values stay on a device
  SequenceRun* const sequence_;
  const RequestId id_;
  const int priority_;
  std::vector<std::unique_ptr<PassFlight>> all_;  // as many as there were at the same time
};

}  // namespace tandem
