// Who gets pages, and who gives them back for it.
//
// Sequences that a round finds without enough pages wait here, in one order for all: by priority
// and age, or by age alone, as the policy says. They are served in that order and without
// overtaking among those that want pages of one pool: all pages of a round, in all its caches, or
// none. The first one takes what it lacks from those behind it, the last first. So it always comes
// to its pages: whoever else holds them either ends, or comes to a round of its own and waits here
// too, behind the first one; two that each hold what the other wants never wait for each other.
//
// Pages that victims share come free when the last of them goes: one whose going makes no room
// stays as long as another's does. If nobody's does, not even everybody's, and no one but those who
// wait holds pages, then what the first one lacks is nowhere, and it is hopeless.
//
// Clients' shares (fairness.h) have no say here. They decide who is admitted and who goes first in
// a batch; but the first one comes to its pages only because the order stays what it is while it
// waits. Service changes with every token, so by shares two sequences could take each other's pages
// in turn, and neither would get on. Priority and age are fixed when a request comes in. What a
// client holds is bounded by what was admitted of it, which its shares did decide.
//
// What a victim held of full pages stays in the prefix caches (cache/prefix_index.h) until it is
// needed, so that its resumption costs little where memory allows.
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
  // `run` stands still, and for others gives up its pages before anyone who waits does.
  void hold(SequenceRun* run);
  // Takes the pages of the last one that stands still and has any of `pools`. False: there is none.
  bool preempt_held(const std::vector<const PagePool*>& pools);
  // Does anybody who uses this model wait for pages?
  bool blocks(ModelId model) const;

  struct Served {
    std::vector<SequenceRun*> granted;   // running again, to be resumed
    std::vector<SequenceRun*> hopeless;  // want more than will ever be free; still waiting
    int64_t preempted = 0;
  };
  // `others_hold(run, pools)`: does any other sequence hold pages of these pools, but for those
  // that wait here without passes under way?
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
