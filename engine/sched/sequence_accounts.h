// A sequence's statistics and timestamps, and its contribution to its method's metrics.
//
// Loop thread only.
#pragma once

#include <cstdint>

#include "engine/base/clock.h"
#include "engine/base/outcome.h"
#include "engine/decode/gen.h"
#include "engine/sched/metrics.h"

namespace tandem {

class SequenceAccounts {
 public:
  // `series` may be null, and outlives it.
  SequenceAccounts(TimePoint submitted, Series* series) : submitted_(submitted), series_(series) {}

  MethodStats& stats() { return stats_; }  // the method updates some of it
  const MethodStats& stats() const { return stats_; }

  void admitted(TimePoint now) { admitted_at_ = now; }
  // Its first round has its pages. `cached_tokens` rows of its prompt came from other sequences.
  void begun(int64_t cached_tokens) { begun_ = true, stats_.cached_tokens = cached_tokens; }
  bool has_begun() const { return begun_; }
  // A chunk of a pass, its last one or not, ran in a batch of `batch_rows` rows that took `busy`.
  // Its share of that time is `share`, in [0, 1].
  void ran(Role role, int batch_rows, Duration busy, double share, bool last);
  // `tokens` >= 1 tokens were emitted. `first_choice`: by the request's first choice.
  void emitted(int64_t tokens, bool first_choice, TimePoint now);
  void preempted() { ++stats_.preemptions; }
  bool has_first_token() const { return first_token_at_ != kNever; }

  // The final statistics, if it ends now.
  MethodStats at_end(TimePoint now) const;

 private:
  const TimePoint submitted_;
  TimePoint admitted_at_ = kNever;
  // Members used in each round come first, with the beginning of the statistics.
  Series* const series_;
  TimePoint first_token_at_ = kNever;
  TimePoint last_token_at_{};
  double batch_rows_sum_ = 0;
  int64_t chunks_ = 0;
  bool begun_ = false;
  MethodStats stats_;
};

}  // namespace tandem
