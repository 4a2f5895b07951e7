// Where a sequence stands between its arrival and its end, and what may follow what.
#pragma once

#include <cstdint>

namespace tandem {

enum class SequenceState : uint8_t {
  kWaiting,    // for admission
  kFollowing,  // admitted; for the prompt rows of its request's first choice
  kRunning,
  kPaused,  // for pages
  kHeld,    // for its reader
  kEnding,
};
inline constexpr int kSequenceStates = 6;
const char* state_name(SequenceState state);  // "waiting", ...

// Every sequence waits first and ends last, from wherever it is; in between it runs from round to
// round, and stops only at one: for pages, for its reader, or first for the one and then the other.
bool may_follow(SequenceState before, SequenceState next);

// A state that changes in no other way.
class CheckedState {
 public:
  SequenceState get() const { return now_; }
  // REQUIRES: may_follow(get(), next).
  void enter(SequenceState next);

 private:
  SequenceState now_ = SequenceState::kWaiting;
};

}  // namespace tandem
