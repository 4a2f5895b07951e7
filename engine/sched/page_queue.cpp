#include "engine/sched/page_queue.h"

#include <algorithm>

namespace tandem {

bool PageQueue::ask(SequenceRun* run) {
  const auto earlier = [run](const SequenceRun* w) {
    return SequenceRun::earlier(w, run) && w->shares_pools_with(*run);
  };
  if (std::none_of(waiting_.begin(), waiting_.end(), earlier)) {
    run->adopt();
    if (run->can_grant()) {
      run->grant();
      return true;
    }
  }
  run->state = SequenceRun::kPaused;
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), run, &SequenceRun::earlier),
                  run);
  return false;
}

bool PageQueue::holds_up(const SequenceRun& run) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const SequenceRun* w) { return w->shares_pools_with(run); });
}

PageQueue::Served PageQueue::serve(const OthersHold& others_hold) {
  Served served;
  std::vector<SequenceRun*> blocked;
  for (size_t i = 0; i < waiting_.size();) {
    SequenceRun* run = waiting_[i];
    const bool behind = std::any_of(blocked.begin(), blocked.end(), [run](const SequenceRun* b) {
      return b->shares_pools_with(*run);
    });
    if (!behind) {
      run->adopt();
      while (!run->can_grant() && evict_for(*run)) ++served.evicted;
      std::vector<const ModelPools*> lacking;
      if (run->can_grant(&lacking)) {
        waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
        run->grant();
        run->state = SequenceRun::kRunning;
        served.granted.push_back(run);
        continue;
      }
      if (run->flights == 0 && !others_hold(*run, lacking)) {
        served.hopeless.push_back(run);
        ++i;
        continue;  // it ends, so it blocks nobody
      }
    }
    blocked.push_back(run);
    ++i;
  }
  return served;
}

void PageQueue::hold(SequenceRun* run) {
  run->state = SequenceRun::kHeld;
  held_.insert(std::upper_bound(held_.begin(), held_.end(), run, &SequenceRun::earlier), run);
}

bool PageQueue::evict_held(const std::vector<const ModelPools*>& pools) {
  for (size_t i = held_.size(); i-- > 0;) {
    SequenceRun* victim = held_[i];
    if (victim->flights > 0 || !victim->holds_pages_of(pools)) continue;
    victim->evict();
    return true;
  }
  return false;
}

// Who gives its pages for `head`, if anyone: first those whose pages nobody else holds as well.
SequenceRun* PageQueue::victim_behind(const SequenceRun& head,
                                      const std::vector<const ModelPools*>& pools) const {
  std::vector<SequenceRun*> behind;
  for (size_t i = waiting_.size(); i-- > 0 && waiting_[i] != &head;) {
    SequenceRun* run = waiting_[i];
    if (run->flights == 0 && run->holds_pages_of(pools)) behind.push_back(run);
  }
  if (policy_ == Preemption::kYoungest) {
    std::sort(behind.begin(), behind.end(),
              [](const SequenceRun* a, const SequenceRun* b) { return a->order() > b->order(); });
  }
  const auto frees = std::find_if(behind.begin(), behind.end(),
                                  [&](const SequenceRun* v) { return v->frees_pages_of(pools); });
  if (frees != behind.end()) return *frees;
  return behind.empty() ? nullptr : behind.front();
}

// Takes the pages of one that stands still, else of one that waits behind `head`.
bool PageQueue::evict_for(const SequenceRun& head) {
  std::vector<const ModelPools*> lacking;
  head.can_grant(&lacking);
  if (evict_held(lacking)) return true;
  SequenceRun* const victim = victim_behind(head, lacking);
  if (victim) victim->evict();
  return victim != nullptr;
}

}  // namespace tandem
