#include "engine/sched/slow_readers.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem {

void SlowReaders::pause(SequenceRun* run, TimePoint now) {
  run->reader_waits = true;
  run->stalled_at = now + duration(limits_.stalled_stream_seconds);
  timers_->set(run->stalled_at, run->id());
  if (run->state != SequenceRun::kPaused) return;  // its next round notices
  page_queue_->erase(run);
  hold(run, now);
}

bool SlowReaders::resume(SequenceRun* run) {
  run->reader_waits = false;
  timers_->drop(std::exchange(run->stalled_at, kNever), run->id());
  if (run->state != SequenceRun::kHeld) return false;
  page_queue_->erase(run);
  admission_->go_on(*run);
  timers_->drop(std::exchange(run->held_until, kNever), run->id());
  if (!page_queue_->ask(run)) return false;
  run->state = SequenceRun::kRunning;
  return true;
}

void SlowReaders::hold(SequenceRun* run, TimePoint now) {
  page_queue_->hold(run);
  admission_->stand_still(*run);
  run->held_until = now + duration(limits_.slow_reader_hold_seconds);
  timers_->set(run->held_until, run->id());
}

absl::Status SlowReaders::lost() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("the client reads too slowly: what it was sent lies unread for ",
                   limits_.stalled_stream_seconds, " s (limits.stalled_stream_seconds)"));
}

}  // namespace tandem
