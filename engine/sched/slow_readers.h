// Backpressure: sequences with slow readers are held at their next round.
//
// A held sequence has no slot (admission.h) and is preempted before others. After
// limits.slow_reader_hold_seconds it is preempted in any case. When its reader catches up, it waits
// for pages in its old position (page_queue.h), not for admission. If the reader stalls for
// limits.stalled_stream_seconds, the request ends.
//
// Loop thread only.
#pragma once

#include <unordered_map>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/sched/admission.h"
#include "engine/sched/page_queue.h"
#include "engine/sched/sequence_run.h"
#include "engine/sched/timers.h"

namespace tandem {

class SlowReaders {
 public:
  // All outlive it.
  SlowReaders(const LimitsConfig& limits, Timers* timers, PageQueue* page_queue,
              Admission* admission)
      : limits_(limits), timers_(timers), page_queue_(page_queue), admission_(admission) {}

  // The reader of `run` is behind. A sequence that waits for pages is held at once.
  void pause(SequenceRun* run, TimePoint now);
  // The reader has caught up. True: `run` was held and has its pages; the caller resumes it.
  bool resume(SequenceRun* run);
  // Holds `run`, whose reader is behind, at a round.
  void hold(SequenceRun* run, TimePoint now);
  // True: its reader is behind, so it is held at its next round.
  bool is_behind(const SequenceRun* run) const { return !waits_.empty() && waits_.contains(run); }
  // The sequence ends, or its reader has caught up.
  void forget(const SequenceRun* run);

  // Timers. is_stalled: its reader has been behind for too long. hold_is_over: it has been held for
  // so long that it loses its pages; true once.
  bool is_stalled(const SequenceRun* run, TimePoint now) const;
  bool hold_is_over(const SequenceRun* run, TimePoint now);
  absl::Status stalled_status() const;  // the end of a request with a stalled reader

 private:
  struct Wait {
    TimePoint stalled_at = kNever;  // the request ends
    TimePoint held_until = kNever;  // it loses its pages
  };
  const LimitsConfig limits_;
  Timers* const timers_;
  PageQueue* const page_queue_;
  Admission* const admission_;
  std::unordered_map<const SequenceRun*, Wait> waits_;  // of sequences whose readers are behind
};

}  // namespace tandem
