#include "engine/decode/payoff.h"

#include <algorithm>

namespace tandem {

void Payoff::Way::add(int t, double s) {
  const double weight = seen++ == 0 ? 1 : kWeight;
  tokens += weight * (t - tokens);
  seconds += weight * (s - seconds);
}

void Payoff::saw(bool drafted, int tokens, double seconds) {
  if (!asked_) return;
  if (!drafted) {
    plain_.add(tokens, seconds);
  } else if (!fresh_) {
    drafts_.add(tokens, seconds);
  }
  fresh_ = false;
  const bool lost = tried_both() && drafting_ == best_ && drafts_are_better() != best_;
  if (--left_ > 0 && !lost) return;

  if (tried_both()) {
    const bool was = best_;
    best_ = drafts_are_better();
    if (best_ != was) {
      run_ = kRun;
    } else if (drafting_ != best_) {  // the trial has changed nothing
      run_ = std::min(2 * run_, kLongest);
    }
  }
  const bool to_try = !tried_both() || drafting_ == best_;
  drafting_ = to_try ? !drafting_ : best_;
  left_ = to_try ? kTrial : run_;
  fresh_ = drafting_;
}

}  // namespace tandem
