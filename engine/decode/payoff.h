// Is drafting worth its rows? A method that may also go without drafts asks before each round.
#pragma once

namespace tandem {

// Compares what a second buys with drafts and without, in tokens, and goes the better way; the
// other is tried again now and then. A second is one of MethodStats::share_seconds, so drafts that
// are not kept lose, as do drafts of a small model that is slow, and those that take room in full
// batches. The tokens of a request must not depend on its drafts, since time would decide about
// them.
class Payoff {
 public:
  static constexpr double kWeight = 0.125;         // of a round, in moving averages
  static constexpr int kTrial = 6;                 // rounds that one way is tried for
  static constexpr int kRun = 32, kLongest = 256;  // rounds of the better way until the next trial

  // Not `asked`: drafts() is always true.
  explicit Payoff(bool asked) : asked_(asked) {}

  bool drafts() const { return drafting_; }
  // A round has made so many tokens at this cost; `drafted`: there were drafts in it.
  void saw(bool drafted, int tokens, double seconds);

 private:
  struct Way {
    double tokens = 0, seconds = 0;  // per round
    int seen = 0;
    void add(int tokens, double seconds);
  };

  bool tried_both() const { return plain_.seen > 0 && drafts_.seen > 0; }
  bool drafts_are_better() const {
    return drafts_.tokens * plain_.seconds >= plain_.tokens * drafts_.seconds;
  }

  const bool asked_;
  Way plain_, drafts_;
  bool drafting_ = true;  // now
  bool best_ = true;      // drafting is better, as far as is known
  bool fresh_ = true;     // its first round, in which a draft model catches up, is no measure
  int left_ = kTrial;     // rounds until another way may be gone
  int run_ = kRun;
};

}  // namespace tandem
