#include "engine/sched/sequence_accounts.h"

namespace tandem {

void SequenceAccounts::ran(Role role, int batch_rows, Duration busy, double share, bool last) {
  const bool encodes = role == Role::kEncoder;  // its time counts as the large model's
  const bool large = role == Role::kLarge || encodes;
  if (last && !encodes) ++(large ? stats_.large_passes : stats_.small_passes);
  (large ? stats_.large_seconds : stats_.small_seconds) += seconds(busy);
  stats_.share_seconds += seconds(busy) * share;
  batch_rows_sum_ += batch_rows;
  ++chunks_;
}

void SequenceAccounts::emitted(int64_t tokens, bool first_choice, TimePoint now) {
  if (!has_first_token()) {
    first_token_at_ = now;
    if (series_ && first_choice) series_->time_to_first_token.observe(seconds(now - submitted_));
  } else if (series_) {
    series_->inter_token_latency.observe(seconds(now - last_token_at_));
  }
  last_token_at_ = now;
  if (series_) series_->generated_tokens.add(tokens);
}

MethodStats SequenceAccounts::at_end(TimePoint now) const {
  MethodStats end = stats_;
  if (chunks_ > 0) end.mean_batch_rows = batch_rows_sum_ / static_cast<double>(chunks_);
  const bool admitted = admitted_at_ != kNever;
  end.queue_seconds = seconds((admitted ? admitted_at_ : now) - submitted_);
  if (admitted) {
    end.prefill_seconds = seconds((has_first_token() ? first_token_at_ : now) - admitted_at_);
    if (has_first_token()) end.decode_seconds = seconds(now - first_token_at_);
  }
  return end;
}

}  // namespace tandem
