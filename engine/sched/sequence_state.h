// The states of a sequence, and their transitions.
#pragma once

#include <cstdint>

namespace tandem {

enum class SequenceState : uint8_t {
  kWaiting,    // waits for admission
  kFollowing,  // admitted; waits for the prompt rows of its request's first choice
  kRunning,
  kPaused,  // waits for pages
  kHeld,    // waits for its reader
  kEnding,
};
inline constexpr int kSequenceStates = 6;
const char* state_name(SequenceState state);  // "waiting", ...

// A sequence starts waiting and may end in any state. In between it runs from round to round; at a
// round it may stop for pages, for its reader, or for one after the other.
bool may_follow(SequenceState before, SequenceState next);

// A state that checks its transitions.
class CheckedState {
 public:
  SequenceState get() const { return now_; }
  // REQUIRES: may_follow(get(), next).
  void enter(SequenceState next);

 private:
  SequenceState now_ = SequenceState::kWaiting;
};

}  // namespace tandem
