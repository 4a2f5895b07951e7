// Who may come in, and when: what can never be served is refused, the rest waits (waiting.h) until
// there is a slot for each of its choices and room for its prompt.
//
// A sequence has a slot (limits.max_running) from its admission to its end, but not while it stands
// still for its reader: then its pages go to whoever needs them.
//
// Loop thread only.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/sched/admission_queue.h"
#include "engine/sched/dispatcher.h"
#include "engine/sched/metrics.h"
#include "engine/sched/page_queue.h"
#include "engine/sched/placement.h"
#include "engine/sched/request_book.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

class Admission {
 public:
  // All outlive it.
  Admission(const LimitsConfig& limits, const Dispatcher* dispatcher, const RequestBook* requests,
            PageQueue* page_queue, Metrics* metrics);

  // Why a request of so many choices, the first one `first`, cannot even wait:
  // INVALID_ARGUMENT, UNAVAILABLE (a lost device), or RESOURCE_EXHAUSTED with a retry hint.
  absl::Status check(const SequenceSpec& first, int choices, TimePoint now,
                     RejectReason* reason) const;
  void wait(SequenceRun* first) { waiting_.push(first); }
  void leave(SequenceRun* first) { waiting_.erase(first); }  // nothing, if it does not wait
  // The next one that may come in now; null: none. It waits on until it leaves.
  struct Next {
    SequenceRun* first = nullptr;
    std::vector<ModelId> models;  // of its roles; empty: it is placed, or has no choice
  };
  Next next();
  size_t waiting() const { return waiting_.size(); }

  // Slots.
  void take_slot(const SequenceRun& run) { count(run, 1); }
  void give_slot(const SequenceRun& run) { count(run, -1); }
  void hold(const SequenceRun& run) { give_slot(run), ++held_; }
  void resume(const SequenceRun& run) { take_slot(run), --held_; }
  void end_held() { --held_; }
  int running() const { return running_; }  // sequences with a slot

  // A request that was admitted has ended.
  void served(TimePoint now);
  // When to try again after RESOURCE_EXHAUSTED, as things stand.
  Duration retry_hint(TimePoint now) const { return hint_.estimate(waiting_.size(), now); }
  // Until when a request may wait, and how it is refused after that.
  TimePoint queue_end(const SequenceSpec& spec) const;
  absl::Status queue_timeout(const SequenceSpec& spec, TimePoint now) const;

 private:
  absl::Status can_ever_fit(const SequenceSpec& spec, int choices) const;
  int slots_used() const;
  void count(const SequenceRun& run, int by);
  std::vector<ModelId> place(const SequenceRun& run, int choices) const;
  // `models`: as in Next.
  bool has_room(const SequenceRun& run, const std::vector<ModelId>& models, int choices);
  // Adds the pools of this model that have not the room which it takes to let the role in.
  void find_lacking(const SequenceRun& run, size_t role, ModelId model, int choices,
                    std::vector<const PagePool*>* lacking) const;

  const LimitsConfig limits_;
  const Dispatcher* const dispatcher_;
  const RequestBook* const requests_;
  PageQueue* const page_queue_;
  Metrics* const metrics_;
  AdmissionQueue waiting_;
  RetryHint hint_;
  std::vector<int> users_;  // by model: sequences with a slot that may take its pages
  Placement placement_;
  int running_ = 0;
  int held_ = 0;  // sequences that stand still for their readers
};

}  // namespace tandem
