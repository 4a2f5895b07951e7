// How many drafts pay? From none up, by what is kept of them and what they cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tandem {

// What a round takes, in seconds of MethodStats::share_seconds: one without drafts, and what each
// draft (or row of a tree) adds.
class RoundCost {
 public:
  static constexpr double kWeight = 0.125;  // of a round, in moving averages

  // REQUIRES: nothing else made the round longer.
  void saw(int drafts, double seconds);

  bool known() const { return rounds_ > 0 && drafts_ > 0; }
  // Where nothing costs time, as on a virtual clock, all rounds take 1.
  double plain() const { return plain_ > 0 ? plain_ : 1; }
  double with(int drafts) const { return plain() + drafts * more(); }
  double more() const { return drafts_ > 0 ? std::max(0.0, more_ / drafts_) : 0; }  // per draft
  double measured() const { return plain_; }  // of one without, 0 on a virtual clock too
  // By how many rounds without drafts a round of so many seconds is longer than it has tokens.
  double lost(int tokens, double seconds) const;

 private:
  int rounds_ = 0;                // without drafts
  double plain_ = 0;              // seconds of one of them
  double drafts_ = 0, more_ = 0;  // and seconds that they added, of late
};

// When to do what does not seem best: what is not done is not known. Among rounds with drafts there
// is one without now and then, and among those without a short trial of drafts. Where trials fail
// there are twice as many rounds to the next one, or more: a trial may be dear.
class Trials {
 public:
  static constexpr int kRest = 32, kLongest = 1024;  // rounds until a trial
  static constexpr int kFirstPlain = 8;              // rounds with drafts until one without
  static constexpr double kShare = 0.02;             // of all time: trials that fail, at most

  enum class Next : uint8_t {
    kBest,   // what pays best, with drafts
    kPlain,  // no drafts
    kTrial,  // a few
  };
  // A trial has so many `rounds` with drafts; one round without them comes after `plain_every`
  // with, at first sooner: one disturbed round must not be all that is known of them.
  Trials(int rounds, int plain_every) : rounds_(rounds), plain_every_(plain_every) {}

  bool trying() const { return trial_ > 0; }
  // What the next round is, after one that had drafts or not and lost as much as RoundCost says.
  // `pays`: is the best with drafts, as far as is known? `streams`: that call this in turn. All of
  // them have a trial's rounds; a round without drafts that is due is the caller's alone.
  Next saw(bool drafted, double lost, bool pays, int streams = 1);

 private:
  const int rounds_, plain_every_;
  int plain_due_ = std::max(1, std::min(kFirstPlain, plain_every_) / 2);  // doubled by the first
  bool drafting_ = true;
  int since_drafts_ = 0;                                   // rounds
  int since_plain_ = std::numeric_limits<int>::max() / 2;  // rounds, or since one was due
  int trial_ = 0;                                          // rounds left of a trial
  double lost_ = 0;                                        // by it, in rounds
  int rest_ = kRest;                                       // rounds from one trial to the next
};

// The gamma of the next round: the one that makes most tokens in a second, as far as is known. With
// a chance of alpha for each draft to be kept, gamma of them make
// (1 - alpha^(gamma + 1)) / (1 - alpha) tokens (Leviathan et al. 2023, equation 1) in the time of a
// round without drafts and gamma times what a draft takes on top. A second is one of
// MethodStats::share_seconds, so drafts lose that are not kept, those of a small model that is
// slow, and those whose rows are dear because the batches are full. A trial has the draft model
// catch up, which may be dear.
//
// The tokens of a request must not depend on its drafts, since time decides about them.
class Payoff {
 public:
  static constexpr double kMemory = 0.9;      // a round's weight against the one after it
  static constexpr double kLastTrials = 0.3;  // the same of what was known before a trial
  static constexpr int kFirst = 2;            // drafts, as long as costs are not known
  static constexpr int kTrial = 2;            // rounds with drafts that a trial has
  static constexpr int kBehind = 8;  // rows that a draft model catches up at no cost of note

  // Up to `most` drafts; not `adaptive`: none or all of them.
  Payoff(int most, bool adaptive) : most_(most), adaptive_(adaptive), gamma_(at_first()) {}

  int gamma() const { return gamma_; }
  // A round has kept `accepted` of its drafts at this cost. It may have had fewer than gamma(), or
  // none: a lookup may find nothing. `behind`: rows that a draft model had to catch up first.
  void saw(int drafted, int accepted, double seconds, int behind = 0);

 private:
  int at_first() const { return adaptive_ ? std::min(kFirst, most_) : most_; }
  int best() const;

  const int most_;
  const bool adaptive_;
  int gamma_;
  double kept_ = 1.5, lost_ = 0.5;  // drafts, and rounds that lost one: of late
  RoundCost cost_;
  Trials trials_{kTrial, Trials::kRest};
  bool first_ = true;  // no round yet: a draft model still reads the prompt
};

}  // namespace tandem
