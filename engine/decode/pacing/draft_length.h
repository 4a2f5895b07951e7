#pragma once

#include "engine/decode/pacing/pace.h"

namespace tandem {

// The number of draft tokens of the next round, gamma, for Pace::kFixed and Pace::kAdaptive.
//
// kAdaptive: 1 + the moving average of the accept lengths. A round counts with kWeight, unless it
// was cut short (by a threshold, max_new_tokens, a stop, a lookup that finds less) and wholly
// accepted.
class DraftLength {
 public:
  static constexpr double kWeight = 0.25;

  DraftLength(Pace pace, int most);

  int gamma() const { return gamma_; }
  // The result of a round. It may have had fewer drafts than gamma().
  void observe(int drafted, int accepted);

 private:
  const Pace pace_;
  const int most_;
  int gamma_;
  double mean_;  // accept length
};

}  // namespace tandem
