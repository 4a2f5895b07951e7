#include "engine/sched/slow_readers.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {

void SlowReaders::pause(SequenceRun* run, TimePoint now) {
  Wait& wait = waits_[run];
  wait.stalled_at = now + duration(limits_.stalled_stream_seconds);
  timers_->set(wait.stalled_at, run->id());
  if (run->state() != SequenceRun::kPaused) return;  // held at its next round
  page_queue_->erase(run);
  hold(run, now);
}

bool SlowReaders::resume(SequenceRun* run) {
  forget(run);
  if (run->state() != SequenceRun::kHeld) return false;
  page_queue_->erase(run);
  admission_->resume(*run);
  if (!page_queue_->request(run)) return false;
  run->enter(SequenceRun::kRunning);
  return true;
}

void SlowReaders::hold(SequenceRun* run, TimePoint now) {
  page_queue_->hold(run);
  admission_->hold(*run);
  Wait& wait = waits_.at(run);
  wait.held_until = now + duration(limits_.slow_reader_hold_seconds);
  timers_->set(wait.held_until, run->id());
}

void SlowReaders::forget(const SequenceRun* run) {
  const auto wait = waits_.find(run);
  if (wait == waits_.end()) return;
  timers_->drop(wait->second.stalled_at, run->id());
  timers_->drop(wait->second.held_until, run->id());
  waits_.erase(wait);
}

bool SlowReaders::is_stalled(const SequenceRun* run, TimePoint now) const {
  const auto wait = waits_.find(run);
  return wait != waits_.end() && wait->second.stalled_at <= now;
}

bool SlowReaders::hold_is_over(const SequenceRun* run, TimePoint now) {
  const auto wait = waits_.find(run);
  if (wait == waits_.end() || wait->second.held_until > now) return false;
  wait->second.held_until = kNever;
  return true;
}

absl::Status SlowReaders::stalled_status() const {
  return with_reason(absl::ResourceExhaustedError(absl::StrCat(
                         "the client reads too slowly: sent data was unread for ",
                         limits_.stalled_stream_seconds, " s (limits.stalled_stream_seconds)")),
                     "SLOW_READER");
}

}  // namespace tandem
