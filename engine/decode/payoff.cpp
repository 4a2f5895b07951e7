#include "engine/decode/payoff.h"

namespace tandem {

int Payoff::best() const {
  if (plain_.seen == 0 || draft_.seen == 0) return at_first();
  // Where nothing costs time, as on a virtual clock, all are equally fast: then as many as may be.
  const double round = plain_.value > 0 ? plain_.value : 1;
  const double alpha = kept_ / (kept_ + lost_);
  int best = 0;
  double tokens = 1, chance = 1, fastest = 1 / round;
  for (int gamma = 1; gamma <= most_; ++gamma) {
    chance *= alpha;
    tokens += chance;
    if (!adaptive_ && gamma < most_) continue;
    const double speed = tokens / (round + gamma * draft_.value);
    if (speed < fastest) continue;
    fastest = speed;
    best = gamma;
  }
  return best;
}

void Payoff::measure(int drafted, double seconds, int behind) {
  if (drafted == 0) {
    plain_.add(seconds);
  } else if (plain_.seen > 0 && behind <= kBehind) {
    draft_.add(std::max(0.0, seconds - plain_.value) / drafted);
  }
}

// What is tried now says more than what was tried then.
void Payoff::start_trial() {
  trial_ = kTrial;
  trial_cost_ = 0;
  kept_ *= kLastTrials;
  lost_ *= kLastTrials;
}

void Payoff::end_trial() {
  if (best() > 0) return;
  const double lost = plain_.value > 0 ? trial_cost_ / plain_.value : 0;  // in rounds
  rest_ = static_cast<int>(
      std::clamp<double>(lost / kTrialShare, std::min(2 * rest_, kLongest), kLongest));
}

void Payoff::saw(int drafted, int accepted, double seconds, int behind) {
  if (!first_) measure(drafted, seconds, behind);
  first_ = false;
  if (drafted > 0) {
    kept_ = kMemory * kept_ + accepted;
    lost_ = kMemory * lost_ + (accepted < drafted ? 1 : 0);
    since_drafts_ = 0;
    ++since_plain_;
    if (trial_ > 0) {
      trial_cost_ += seconds - (accepted + 1) * plain_.value;
      if (--trial_ == 0) end_trial();
    }
  } else {
    ++since_drafts_;
    since_plain_ = 0;
  }

  if (trial_ == 0 && gamma_ == 0 && since_drafts_ >= rest_) start_trial();
  if (trial_ > 0) {
    gamma_ = adaptive_ ? 1 : most_;
    return;
  }
  const int fastest = best();
  if (fastest > 0 && gamma_ == 0) rest_ = kRest;
  gamma_ = since_plain_ >= kRest ? 0 : fastest;
}

}  // namespace tandem
