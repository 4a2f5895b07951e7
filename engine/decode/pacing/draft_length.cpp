#include "engine/decode/pacing/draft_length.h"

#include <algorithm>
#include <cmath>

namespace tandem {

DraftLength::DraftLength(Pace pace, int most)
    : pace_(pace), most_(most), gamma_(most), mean_(static_cast<double>(most) - 1) {}

void DraftLength::observe(int drafted, int accepted) {
  if (pace_ == Pace::kFixed) return;
  if (accepted == drafted && drafted < gamma_) return;
  mean_ += kWeight * (accepted - mean_);
  gamma_ = std::clamp(1 + static_cast<int>(std::lround(mean_)), 1, most_);
}

}  // namespace tandem
