#include "engine/sched/waiting.h"

#include "absl/strings/str_cat.h"

namespace tandem {

absl::Status WaitingRoom::check(int64_t prompt_tokens, RejectReason* reason) const {
  if (static_cast<int>(size()) >= limits_.max_waiting) {
    *reason = RejectReason::kQueueFull;
    return absl::ResourceExhaustedError(
        absl::StrCat("queue is full: ", size(), " requests wait; allowed: ", limits_.max_waiting,
                     " (limits.max_waiting); try again later"));
  }
  if (tokens_ > 0 && tokens_ + prompt_tokens > limits_.max_waiting_tokens) {
    *reason = RejectReason::kQueueTokens;
    return absl::ResourceExhaustedError(absl::StrCat(
        "queue is full: ", tokens_, " prompt tokens wait; allowed: ", limits_.max_waiting_tokens,
        " (limits.max_waiting_tokens); try again later"));
  }
  return absl::OkStatus();
}

void WaitingRoom::push(SequenceRun* run) {
  order_.insert(run);
  tokens_ += static_cast<int64_t>(run->spec().prompt.size());
}

void WaitingRoom::erase(SequenceRun* run) {
  if (order_.erase(run) > 0) tokens_ -= static_cast<int64_t>(run->spec().prompt.size());
}

}  // namespace tandem
