// How many drafts pay? From none up, by what is kept of them and what they cost.
#pragma once

#include <algorithm>

namespace tandem {

// The gamma of the next round: the one that makes most tokens in a second, as far as is known. With
// a chance of alpha for each draft to be kept, gamma of them make
// (1 - alpha^(gamma + 1)) / (1 - alpha) tokens (Leviathan et al. 2023, equation 1) in the time of a
// round without drafts and gamma times what a draft takes on top. A second is one of
// MethodStats::share_seconds, so drafts lose that are not kept, those of a small model that is
// slow, and those whose rows are dear because the batches are full.
//
// What is not done is not known: among rounds with drafts there is one without now and then, and
// among those without a short trial of drafts. Where trials fail there are twice as many rounds to
// the next one, or more: a trial has the draft model catch up, which may be dear.
//
// The tokens of a request must not depend on its drafts, since time decides about them.
class Payoff {
 public:
  static constexpr double kMemory = 0.9;             // a round's weight against the one after it
  static constexpr double kLastTrials = 0.3;         // the same of what was known before a trial
  static constexpr double kCostWeight = 0.125;       // of a round, in moving averages of seconds
  static constexpr int kFirst = 2;                   // drafts, as long as costs are not known
  static constexpr int kTrial = 2;                   // rounds with drafts that a trial has
  static constexpr int kRest = 32, kLongest = 1024;  // rounds until a trial
  static constexpr double kTrialShare = 0.02;        // of all time: trials that fail, at most
  static constexpr int kBehind = 8;  // rows that a draft model catches up at no cost of note

  // Up to `most` drafts; not `adaptive`: none or all of them.
  Payoff(int most, bool adaptive) : most_(most), adaptive_(adaptive), gamma_(at_first()) {}

  int gamma() const { return gamma_; }
  // A round has kept `accepted` of its drafts at this cost. It may have had fewer than gamma(), or
  // none: a lookup may find nothing. `behind`: rows that a draft model had to catch up first.
  void saw(int drafted, int accepted, double seconds, int behind = 0);

 private:
  struct Mean {
    double value = 0;
    int seen = 0;
    void add(double v) { value += std::max(1.0 / ++seen, kCostWeight) * (v - value); }
  };

  int at_first() const { return adaptive_ ? std::min(kFirst, most_) : most_; }
  int best() const;
  void measure(int drafted, double seconds, int behind);
  void start_trial();
  void end_trial();

  const int most_;
  const bool adaptive_;
  int gamma_;
  double kept_ = 1.5, lost_ = 0.5;  // drafts, and rounds that lost one: of late
  Mean plain_;                      // seconds of a round without drafts
  Mean draft_;                      // seconds that each draft adds
  bool first_ = true;               // no round yet: a draft model still reads the prompt
  int since_drafts_ = 0;            // rounds
  int since_plain_ = kRest;         // rounds
  int trial_ = 0;                   // rounds left of a trial
  double trial_cost_ = 0;           // seconds that it has lost
  int rest_ = kRest;                // rounds from one trial to the next
};

}  // namespace tandem
