#include "engine/decode/pacing/draft_length.h"

#include <algorithm>
#include <cmath>

namespace tandem {

DraftLength::DraftLength(Pace pace, int most)
    : pace_(pace),
      most_(most),
      gamma_(pace == Pace::kFastest ? std::min(kFirst, most) : most),
      mean_(static_cast<double>(most) - 1) {}

void DraftLength::follow(int drafted, int accepted) {
  if (accepted == drafted && drafted < gamma_) return;
  mean_ += kWeight * (accepted - mean_);
  gamma_ = std::clamp(1 + static_cast<int>(std::lround(mean_)), 1, most_);
}

int DraftLength::fastest() const {
  if (!cost_.known()) return std::min(kFirst, most_);
  const double alpha = acceptance_.rate();
  int best = 0;
  double tokens = 1, chance = 1, speed = 1 / cost_.plain();
  for (int gamma = 1; gamma <= most_; ++gamma) {
    chance *= alpha;
    tokens += chance;
    if (tokens / cost_.line(gamma) < speed) continue;
    speed = tokens / cost_.line(gamma);
    best = gamma;
  }
  return best;
}

void DraftLength::observe(int drafted, int accepted, double seconds, int behind) {
  if (pace_ == Pace::kAdaptive) follow(drafted, accepted);
  if (pace_ != Pace::kFastest) return;
  if (!first_ && (drafted == 0 || behind <= kBehind)) cost_.observe(drafted, seconds);
  first_ = false;
  if (drafted > 0) acceptance_.observe(accepted, std::min(accepted + 1, drafted), kMemory);
  const int best = fastest();
  const bool in_trial = exploration_.in_trial();
  switch (exploration_.observe(drafted > 0, cost_.lost(accepted + 1, seconds), best > 0)) {
    case Exploration::Round::kBest:
      gamma_ = best;
      return;
    case Exploration::Round::kPlain:
      gamma_ = 0;
      return;
    case Exploration::Round::kTrial:
      gamma_ = 1;
      if (!in_trial) acceptance_.scale(kTrialMemory);
  }
}

}  // namespace tandem
