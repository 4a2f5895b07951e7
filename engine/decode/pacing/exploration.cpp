#include "engine/decode/pacing/exploration.h"

namespace tandem {

void Exploration::visit(SavedNumbers* saved) {
  constexpr int kMost = std::numeric_limits<int>::max() / 4 * 3;  // since_plain_ begins at half
  saved->visit(&plain_due_, 1, kMost);
  int drafting = drafting_ ? 1 : 0;
  saved->visit(&drafting, 0, 1);
  drafting_ = drafting == 1;
  for (int* rounds : {&since_drafts_, &since_plain_, &trial_}) saved->visit(rounds, 0, kMost);
  saved->visit(&lost_, -SavedNumbers::kMost);
  saved->visit(&pause_, 0, kMost);
}

Exploration::Round Exploration::observe(bool drafted, double lost, bool pays, int streams) {
  if (drafted) {
    since_drafts_ = 0;
    ++since_plain_;
    if (trial_ > 0) {
      lost_ += lost;
      if (--trial_ == 0 && !pays) {
        pause_ = static_cast<int>(
            std::clamp<double>(lost_ / kShare, std::min(2 * pause_, kLongestPause), kLongestPause));
      }
    }
  } else {
    ++since_drafts_;
    since_plain_ = 0;
  }
  if (trial_ == 0 && !drafting_ && since_drafts_ >= pause_ * streams) {
    trial_ = trial_rounds_ * streams;
    lost_ = 0;
  }
  if (trial_ > 0) {
    drafting_ = true;
    return Round::kTrial;
  }
  if (pays && !drafting_) pause_ = kPause;
  drafting_ = pays && since_plain_ < plain_due_ * streams;
  if (pays && !drafting_) {
    plain_due_ = std::min(2 * plain_due_, plain_every_);
    since_plain_ = 0;
  }
  return drafting_ ? Round::kBest : Round::kPlain;
}

}  // namespace tandem
