#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// Schedules rounds that do not look best, so that both alternatives stay measured. Among rounds
// with drafts, one in `plain_every` has none. Among rounds without drafts, a short trial of drafts
// runs after a pause. Failed trials at least double the pause, so that they take at most kShare of
// the time.
class Exploration {
 public:
  static constexpr int kPause = 32, kLongestPause = 1024;  // rounds until a trial
  static constexpr int kFirstPlain = 8;  // rounds with drafts until the second one without
  static constexpr double kShare = 0.02;

  enum class Round : uint8_t {
    kBest,   // drafts, as many as look best
    kPlain,  // no drafts
    kTrial,  // a few drafts
  };

  // trial_rounds: with drafts, of a trial. The first rounds without drafts come sooner than
  // plain_every, so that one disturbed round is not the only measurement.
  Exploration(int trial_rounds, int plain_every)
      : trial_rounds_(trial_rounds), plain_every_(plain_every) {}

  bool in_trial() const { return trial_ > 0; }
  // Returns the kind of the next round, after a round with or without drafts that lost `lost`
  // tokens (CostModel::lost). pays: the best known choice has drafts. streams: the requests that
  // share this object. A trial is for all of them; a plain round is for the caller alone.
  Round observe(bool drafted, double lost, bool pays, int streams = 1);

  void visit(SavedNumbers* saved);

 private:
  const int trial_rounds_, plain_every_;
  int plain_due_ = std::max(1, std::min(kFirstPlain, plain_every_) / 2);  // doubled by the first
  bool drafting_ = true;
  int since_drafts_ = 0;                                   // rounds
  int since_plain_ = std::numeric_limits<int>::max() / 2;  // rounds, or since one was due
  int trial_ = 0;                                          // rounds left of the trial
  double lost_ = 0;                                        // tokens, by the trial
  int pause_ = kPause;                                     // rounds between trials
};

}  // namespace tandem
