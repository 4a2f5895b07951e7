// Sequences whose readers are behind: they stop at their next round, and stand still.
//
// One that stands still has no slot (admission.h), and others get its pages if they want them;
// after limits.slow_reader_hold_seconds it has none. When its reader goes on, so does it, in its
// old place: it waits for pages (page_queue.h), not for admission. A reader that is behind for
// limits.stalled_stream_seconds has lost its request.
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

  // The reader of `run` is behind. A sequence that waits for pages is at a round already.
  void pause(SequenceRun* run, TimePoint now);
  // It has caught up. True: `run` stood still, and has its pages to go on.
  bool resume(SequenceRun* run);
  // `run`, whose reader is behind, has come to a round: it stands still from here on.
  void hold(SequenceRun* run, TimePoint now);
  // Is its reader behind, so that it stops at its next round?
  bool is_behind(const SequenceRun* run) const { return !waits_.empty() && waits_.contains(run); }
  // It ends, or its reader has caught up.
  void forget(const SequenceRun* run);

  // Timers: has its reader been behind for too long? Has it stood still for so long that it gives
  // up its pages? Says so once.
  bool is_stalled(const SequenceRun* run, TimePoint now) const;
  bool hold_is_over(const SequenceRun* run, TimePoint now);
  absl::Status stalled_status() const;  // how a request ends whose reader is behind for too long

 private:
  struct Wait {
    TimePoint stalled_at = kNever;  // its reader's patience ends
    TimePoint held_until = kNever;  // it keeps its pages
  };
  const LimitsConfig limits_;
  Timers* const timers_;
  PageQueue* const page_queue_;
  Admission* const admission_;
  std::unordered_map<const SequenceRun*, Wait> waits_;  // of those whose readers are behind
};

}  // namespace tandem
