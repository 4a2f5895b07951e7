// Admission control. Requests that can never be served are refused. Others wait (admission_queue.h)
// until each of their choices has a slot and their prompt has pages.
//
// A sequence occupies a slot (limits.max_running) from admission to its end, except while it is
// held for its reader; other sequences may then take its pages.
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

  // The dispatcher has more models.
  void models_added() { users_.resize(dispatcher_->models(), 0); }
  // Checks that a request of `choices` choices may wait; `first` is the first choice. Errors:
  // INVALID_ARGUMENT, UNAVAILABLE (a lost device), or RESOURCE_EXHAUSTED with a retry hint.
  absl::Status check(const SequenceSpec& first, int choices, TimePoint now,
                     RejectReason* reason) const;
  void wait(SequenceRun* first) { waiting_.push(first); }
  void leave(SequenceRun* first) { waiting_.erase(first); }  // no-op if it does not wait
  // The next request that can be admitted now; null: none. It stays queued until leave().
  struct Next {
    SequenceRun* first = nullptr;
    std::vector<ModelId> models;  // by role; empty: already placed, or there are no replicas
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
  // The retry delay for RESOURCE_EXHAUSTED at the current load.
  Duration retry_hint(TimePoint now) const { return hint_.estimate(waiting_.size(), now); }
  // The end of a request's time in the queue, and the error after it.
  TimePoint queue_end(const SequenceSpec& spec) const;
  absl::Status queue_timeout(const SequenceSpec& spec, TimePoint now) const;

 private:
  absl::Status can_ever_fit(const SequenceSpec& spec, int choices) const;
  int slots_used() const;
  void count(const SequenceRun& run, int by);
  std::vector<ModelId> place(const SequenceRun& run, int choices) const;
  // `models`: as in Next.
  bool has_room(const SequenceRun& run, const std::vector<ModelId>& models, int choices);
  // Adds the pools of this model that lack pages to admit the role.
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
  int held_ = 0;  // sequences held for their readers
};

}  // namespace tandem
