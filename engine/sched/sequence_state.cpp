#include "engine/sched/sequence_state.h"

#include "engine/base/check.h"
#include "engine/base/enum_names.h"

namespace tandem {
namespace {

constexpr auto kStateNames = enum_names<SequenceState>({
    {SequenceState::kWaiting, "waiting"},
    {SequenceState::kFollowing, "following"},
    {SequenceState::kRunning, "running"},
    {SequenceState::kPaused, "paused"},
    {SequenceState::kHeld, "held"},
    {SequenceState::kEnding, "ending"},
});

}  // namespace

const char* state_name(SequenceState state) { return kStateNames[state].data(); }

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
