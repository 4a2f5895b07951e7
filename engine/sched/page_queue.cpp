#include "engine/sched/page_queue.h"

#include <algorithm>

#include "engine/base/mutation.h"

namespace tandem {

bool PageQueue::before(const SequenceRun* a, const SequenceRun* b) const {
  const int pa = a->spec().priority, pb = b->spec().priority;
  if (policy_ == Preemption::kLowestPriority && pa != pb) return pa > pb;
  return a->order() < b->order();
}

void PageQueue::insert(std::vector<SequenceRun*>* line, SequenceRun* run) const {
  const auto place =
      std::upper_bound(line->begin(), line->end(), run,
                       [this](const auto* a, const auto* b) { return before(a, b); });
  line->insert(place, run);
}

bool PageQueue::request(SequenceRun* run) {
  const auto goes_before = [&](const SequenceRun* w) {
    return before(w, run) && w->shares_pools_with(*run);
  };
  if (std::none_of(waiting_.begin(), waiting_.end(), goes_before) || mutated(Mutation::kOvertake)) {
    run->adopt();
    if (run->can_grant()) {
      run->grant();
      return true;
    }
  }
  run->enter(SequenceRun::kPaused);
  insert(&waiting_, run);
  return false;
}

bool PageQueue::blocks(ModelId model) const {
  return std::ranges::any_of(waiting_, [model](const SequenceRun* w) { return w->uses(model); });
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
      while (!run->can_grant() && preempt_for(*run)) ++served.preempted;
      std::vector<const PagePool*> lacking;
      if (run->can_grant(&lacking)) {
        waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
        run->grant();
        run->enter(SequenceRun::kRunning);
        served.granted.push_back(run);
        continue;
      }
      if (run->flights() == 0 && !others_hold(*run, lacking)) {
        served.hopeless.push_back(run);  // its end frees pages for later ones
      }
    }
    if (!mutated(Mutation::kOvertake)) blocked.push_back(run);
    ++i;
  }
  return served;
}

void PageQueue::hold(SequenceRun* run) {
  run->enter(SequenceRun::kHeld);
  insert(&held_, run);
}

bool PageQueue::preempt_held(const std::vector<const PagePool*>& pools) {
  for (size_t i = held_.size(); i-- > 0;) {
    SequenceRun* victim = held_[i];
    if (victim->flights() > 0 || !victim->caches().holds_pages_of(pools)) continue;
    victim->preempt();
    return true;
  }
  return false;
}

// The sequence to preempt for `head`; null: preemption frees no page.
SequenceRun* PageQueue::victim_behind(const SequenceRun& head,
                                      const std::vector<const PagePool*>& pools) const {
  std::vector<SequenceRun*> behind;
  for (size_t i = waiting_.size(); i-- > 0 && waiting_[i] != &head;) {
    SequenceRun* run = waiting_[i];
    if (run->flights() == 0 && run->caches().holds_pages_of(pools)) behind.push_back(run);
  }
  if (policy_ == Preemption::kYoungest) {
    std::sort(behind.begin(), behind.end(),
              [](const SequenceRun* a, const SequenceRun* b) { return a->order() > b->order(); });
  }
  const auto frees_pages = [&](std::span<SequenceRun* const> victims) {
    CacheSet::PageCounts counts;
    for (const SequenceRun* v : victims) v->caches().count_pages_of(pools, &counts);
    return std::any_of(counts.begin(), counts.end(), [](const auto& entry) {
      return entry.first.first->users(entry.first.second) == entry.second;
    });
  };
  for (SequenceRun* const& run : behind) {
    if (frees_pages({&run, 1})) return run;
  }
  return frees_pages(behind) ? behind.front() : nullptr;
}

// Preempts a held sequence, else one that waits behind `head`.
bool PageQueue::preempt_for(const SequenceRun& head) {
  std::vector<const PagePool*> lacking;
  head.can_grant(&lacking);
  if (preempt_held(lacking)) return true;
  SequenceRun* const victim = victim_behind(head, lacking);
  if (victim) victim->preempt();
  return victim != nullptr;
}

}  // namespace tandem
