// Estimates the time of a round from its rows, in seconds of MethodStats::share_seconds.
#pragma once

#include <map>

#include "engine/decode/pacing/recent_median.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// Two estimates: a line, and a piecewise linear curve through the recent times of each number of
// rows. The curve follows kernels that compute several rows at once, so that one more row may cost
// nothing or much. The line needs fewer observations and follows changing batches at once.
//
// Rows are those beyond the first one: draft tokens, or nodes and mask tokens of a tree.
class CostModel {
 public:
  static constexpr double kWeight = 0.125;  // of a round, in the slope of the line
  static constexpr double kMemory = 0.99;   // of a round, against the next one of another size
  static constexpr double kMost = 10;       // rounds of one size that count
  static constexpr double kDoubt = 1;       // rounds that the line counts for at each size
  static constexpr double kSeen = 3;        // rounds until a size is known

  // REQUIRES: nothing else, such as a prompt, made the round longer.
  void observe(int rows, double seconds);

  // Rounds with and without additional rows have been observed.
  bool known() const { return !plain_.empty() && rows_ > 0; }
  double measured() const { return plain_.value(); }  // a round without additional rows
  // The same, but 1 where nothing takes time, as on a virtual clock.
  double plain() const { return measured() > 0 ? measured() : 1; }
  double per_row() const;  // the slope of the line
  double line(int rows) const { return plain() + rows * per_row(); }
  double curve(int rows) const;
  // The largest size worth trying: beyond it the curve is extrapolated too far.
  int reach() const;
  bool known(int rows) const;
  // Tokens lost: tokens that plain rounds would have made in this time, minus `tokens`.
  double lost(int tokens, double seconds) const;

  void visit(SavedNumbers* saved);

 private:
  struct Size {
    double rounds = 0;  // decayed
    RecentMedian<> seconds;
  };
  double additional(int rows, const Size& size) const;  // seconds

  RecentMedian<> plain_;
  double rows_ = 0, more_ = 0;  // decayed sums: rows, and the seconds that they added
  std::map<int, Size> sizes_;   // by rows
};

}  // namespace tandem
