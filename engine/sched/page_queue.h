// The queue for pages, and preemption.
//
// Sequences whose round lacks pages wait here, ordered by priority and age, or by age alone
// (limits.preemption). Sequences that use the same pool are served in that order without
// overtaking. A round gets all its pages, in all its caches, or none. The head of the queue
// preempts held sequences first, then the last waiting one. So the head always gets its pages:
// every other owner either ends or reaches a round and waits behind it. Two sequences never wait
// for each other.
//
// A page shared by victims becomes free when the last of them is preempted. A sequence whose
// preemption frees no page is spared as long as another's does. If preempting all of them frees
// nothing, and no other sequence holds pages, the head can never get its pages (hopeless).
//
// Fair shares (fairness.h) do not apply here, as progress requires a fixed order. Service changes
// with every token, so two sequences could preempt each other in turn. Priority and age are fixed
// on arrival. Fair shares bound a client's pages through admission.
//
// Full pages of a victim stay in the prefix cache (cache/prefix_index.h) until they are needed, so
// resuming it is cheap if memory allows.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/config.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

class PageQueue {
 public:
  explicit PageQueue(Preemption policy = Preemption::kLowestPriority) : policy_(policy) {}

  // True: granted at once. False: `run` is paused and waits.
  bool request(SequenceRun* run);
  void erase(SequenceRun* run) {
    std::erase(waiting_, run);
    std::erase(held_, run);
  }
  // Holds `run` for its reader: it is preempted before any waiting sequence.
  void hold(SequenceRun* run);
  // Preempts the last held sequence with pages of `pools`. False: none.
  bool preempt_held(const std::vector<const PagePool*>& pools);
  bool idle() const { return waiting_.empty(); }  // no sequence waits for pages
  // True: a sequence that uses this model waits for pages.
  bool blocks(ModelId model) const;

  struct Served {
    std::vector<SequenceRun*> granted;   // running again; the caller resumes them
    std::vector<SequenceRun*> hopeless;  // need more than can become free; still waiting
    int64_t preempted = 0;
  };
  // `others_hold(run, pools)`: another sequence holds pages of these pools. Sequences that wait
  // here without passes under way do not count.
  using OthersHold =
      std::function<bool(const SequenceRun& run, const std::vector<const PagePool*>& pools)>;
  Served serve(const OthersHold& others_hold);

 private:
  bool before(const SequenceRun* a, const SequenceRun* b) const;
  void insert(std::vector<SequenceRun*>* line, SequenceRun* run) const;
  bool preempt_for(const SequenceRun& head);
  SequenceRun* victim_behind(const SequenceRun& head,
                             const std::vector<const PagePool*>& pools) const;

  const Preemption policy_;
  std::vector<SequenceRun*> waiting_;
  std::vector<SequenceRun*> held_;
};

}  // namespace tandem
