#include "engine/sched/sequence_state.h"

#include "engine/base/check.h"

namespace tandem {

const char* state_name(SequenceState state) {
  switch (state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kFollowing:
      return "following";
    case SequenceState::kRunning:
      return "running";
    case SequenceState::kPaused:
      return "paused";
    case SequenceState::kHeld:
      return "held";
    case SequenceState::kEnding:
      return "ending";
  }
  return "?";
}

bool may_follow(SequenceState before, SequenceState next) {
  using enum SequenceState;
  switch (next) {
    case kWaiting:
      return false;
    case kFollowing:
      return before == kWaiting;
    case kRunning:  // by admission, prompt rows, pages or its reader
      return before != kRunning && before != kEnding;
    case kPaused:
      return before == kRunning || before == kHeld;
    case kHeld:
      return before == kRunning || before == kPaused;
    case kEnding:
      return before != kEnding;
  }
  return false;
}

void CheckedState::enter(SequenceState next) {
  TANDEM_CHECK(may_follow(now_, next));
  now_ = next;
}

}  // namespace tandem
