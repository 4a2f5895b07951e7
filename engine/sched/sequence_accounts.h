// What a sequence did and how long it took: its statistics, its moments, and what its method's
// series hear of it.
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

  MethodStats& stats() { return stats_; }  // what only the method can count
  const MethodStats& stats() const { return stats_; }

  void admitted(TimePoint now) { admitted_at_ = now; }
  // Its first round has its pages, and of its prompt so many tokens' rows from others.
  void begun(int64_t cached_tokens) { begun_ = true, stats_.cached_tokens = cached_tokens; }
  bool has_begun() const { return begun_; }
  // Rows of a pass, the last ones or not, ran in a batch of so many rows, which took so long and of
  // which they are charged `share`, in [0, 1].
  void ran(Role role, int batch_rows, Duration busy, double share, bool last);
  // So many tokens went out, at least one. `first_choice`: they count as the request's first.
  void emitted(int64_t tokens, bool first_choice, TimePoint now);
  void preempted() { ++stats_.preemptions; }
  bool has_first_token() const { return first_token_at_ != kNever; }

  // What comes of it when it ends now.
  MethodStats at_end(TimePoint now) const;

 private:
  const TimePoint submitted_;
  TimePoint admitted_at_ = kNever;
  // What each round touches, and of the statistics their beginning.
  Series* const series_;
  TimePoint first_token_at_ = kNever;
  TimePoint last_token_at_{};
  double batch_rows_sum_ = 0;
  int64_t chunks_ = 0;
  bool begun_ = false;
  MethodStats stats_;
};

}  // namespace tandem
