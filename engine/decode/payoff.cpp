#include "engine/decode/payoff.h"

namespace tandem {

void RoundCost::saw(int drafts, double seconds) {
  if (drafts == 0) {
    // What else a machine does makes a round longer, never shorter: so it falls at once.
    const double mean = plain_ + std::max(1.0 / ++rounds_, kWeight) * (seconds - plain_);
    plain_ = rounds_ == 1 ? seconds : std::min(seconds, mean);
  } else if (rounds_ > 0) {
    drafts_ = (1 - kWeight) * drafts_ + drafts;
    more_ = (1 - kWeight) * more_ + seconds - plain_;
  }
}

double RoundCost::lost(int tokens, double seconds) const {
  return plain_ > 0 ? seconds / plain_ - tokens : 0;
}

Trials::Next Trials::saw(bool drafted, double lost, bool pays, int streams) {
  if (drafted) {
    since_drafts_ = 0;
    ++since_plain_;
    if (trial_ > 0) {
      lost_ += lost;
      if (--trial_ == 0 && !pays) {
        rest_ = static_cast<int>(
            std::clamp<double>(lost_ / kShare, std::min(2 * rest_, kLongest), kLongest));
      }
    }
  } else {
    ++since_drafts_;
    since_plain_ = 0;
  }
  if (trial_ == 0 && !drafting_ && since_drafts_ >= rest_ * streams) {
    trial_ = rounds_ * streams;
    lost_ = 0;
  }
  if (trial_ > 0) {
    drafting_ = true;
    return Next::kTrial;
  }
  if (pays && !drafting_) rest_ = kRest;
  drafting_ = pays && since_plain_ < plain_due_ * streams;
  if (pays && !drafting_) {
    plain_due_ = std::min(2 * plain_due_, plain_every_);
    since_plain_ = 0;
  }
  return drafting_ ? Next::kBest : Next::kPlain;
}

int Payoff::best() const {
  if (!cost_.known()) return at_first();
  const double alpha = kept_ / (kept_ + lost_);
  int best = 0;
  double tokens = 1, chance = 1, fastest = 1 / cost_.plain();
  for (int gamma = 1; gamma <= most_; ++gamma) {
    chance *= alpha;
    tokens += chance;
    if (!adaptive_ && gamma < most_) continue;
    const double speed = tokens / cost_.with(gamma);
    if (speed < fastest) continue;
    fastest = speed;
    best = gamma;
  }
  return best;
}

void Payoff::saw(int drafted, int accepted, double seconds, int behind) {
  if (!first_ && (drafted == 0 || behind <= kBehind)) cost_.saw(drafted, seconds);
  first_ = false;
  if (drafted > 0) {
    kept_ = kMemory * kept_ + accepted;
    lost_ = kMemory * lost_ + (accepted < drafted ? 1 : 0);
  }
  const int fastest = best();
  const bool trying = trials_.trying();
  switch (trials_.saw(drafted > 0, cost_.lost(accepted + 1, seconds), fastest > 0)) {
    case Trials::Next::kBest:
      gamma_ = fastest;
      return;
    case Trials::Next::kPlain:
      gamma_ = 0;
      return;
    case Trials::Next::kTrial:
      gamma_ = adaptive_ ? 1 : most_;
      if (trying) return;
      // What is tried now says more than what was tried then.
      kept_ *= kLastTrials;
      lost_ *= kLastTrials;
  }
}

}  // namespace tandem
