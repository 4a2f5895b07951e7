#pragma once

#include "engine/decode/pacing/acceptance_estimator.h"
#include "engine/decode/pacing/cost_model.h"
#include "engine/decode/pacing/exploration.h"
#include "engine/decode/pacing/pace.h"

namespace tandem {

// Chooses gamma, the number of draft tokens of the next round.
//
// kAdaptive: 1 + the moving average of the accept lengths. A round counts with kWeight, unless it
// was cut short (by a threshold, max_new_tokens, a stop, a lookup that finds less) and wholly
// accepted.
//
// kFastest: maximizes expected tokens per second. If each draft is accepted with probability alpha,
// gamma drafts make (1 - alpha^(gamma + 1)) / (1 - alpha) tokens (Leviathan et al. 2023, equation
// 1) in the time of a plain round and gamma rows. Time decides, so this requires that drafts cannot
// change tokens.
class DraftLength {
 public:
  static constexpr double kWeight = 0.25;
  static constexpr double kMemory = 0.9;       // of a round's acceptance, against the next one
  static constexpr double kTrialMemory = 0.3;  // of what was observed before a trial
  static constexpr int kFirst = 2;             // drafts while costs are unknown
  static constexpr int kTrial = 2;             // rounds of a trial
  static constexpr int kBehind = 8;  // rows that a draft model catches up at negligible cost

  DraftLength(Pace pace, int most);

  int gamma() const { return gamma_; }
  // The result of a round. It may have had fewer drafts than gamma(). behind: rows that the draft
  // model lacked before the round.
  void observe(int drafted, int accepted, double seconds, int behind = 0);

 private:
  void follow(int drafted, int accepted);
  int fastest() const;

  const Pace pace_;
  const int most_;
  int gamma_;
  double mean_;  // accept length
  AcceptanceEstimator acceptance_{1.5, 2};
  CostModel cost_;
  Exploration exploration_{kTrial, Exploration::kPause};
  bool first_ = true;  // no round yet: a draft model still reads the prompt
};

}  // namespace tandem
