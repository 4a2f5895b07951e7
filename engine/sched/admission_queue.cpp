#include "engine/sched/admission_queue.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/base/status.h"
#include "engine/sched/metrics.h"

namespace tandem {

absl::Status AdmissionQueue::check(int64_t prompt_tokens, RejectReason* reason) const {
  if (mutated(Mutation::kUnboundedQueue)) return absl::OkStatus();
  if (static_cast<int>(size()) >= limits_.max_waiting) {
    *reason = RejectReason::kQueueFull;
    return with_reason(
        absl::ResourceExhaustedError(absl::StrCat("queue is full: ", size(),
                                                  " requests wait; allowed: ", limits_.max_waiting,
                                                  " (limits.max_waiting); try again later")),
        "QUEUE_FULL");
  }
  if (tokens_ > 0 && tokens_ + prompt_tokens > limits_.max_waiting_tokens) {
    *reason = RejectReason::kQueueTokens;
    return with_reason(absl::ResourceExhaustedError(absl::StrCat(
                           "queue is full: ", tokens_,
                           " prompt tokens wait; allowed: ", limits_.max_waiting_tokens,
                           " (limits.max_waiting_tokens); try again later")),
                       "QUEUE_FULL");
  }
  return absl::OkStatus();
}

std::vector<ModelId> AdmissionQueue::line_of(const SequenceRun& run) {
  std::vector<ModelId> models;
  for (const CastRole& role : run.spec().roles()) models.push_back(role.model);
  std::sort(models.begin(), models.end());
  models.erase(std::unique(models.begin(), models.end()), models.end());
  return models;
}

void AdmissionQueue::push(SequenceRun* run) {
  Level& level = lines_[line_of(*run)][run->spec().priority];
  std::deque<SequenceRun*>& mine = level.of[run->account()];
  if (mine.empty()) level.order.add(run->account());
  mine.push_back(run);
  ++size_;
  tokens_ += run->spec().prompt_tokens();
  if (Series* s = run->spec().series) s->requests_waiting.add(1);
  if (AdapterSeries* s = run->spec().adapter_series) s->requests_waiting.add(1);
}

void AdmissionQueue::erase(SequenceRun* run) {
  const auto line = lines_.find(line_of(*run));
  if (line == lines_.end()) return;
  const auto level = line->second.find(run->spec().priority);
  if (level == line->second.end()) return;
  const auto mine = level->second.of.find(run->account());
  if (mine == level->second.of.end()) return;
  if (std::erase(mine->second, run) == 0) return;
  --size_;
  tokens_ -= run->spec().prompt_tokens();
  if (Series* s = run->spec().series) s->requests_waiting.add(-1);
  if (AdapterSeries* s = run->spec().adapter_series) s->requests_waiting.add(-1);
  if (!mine->second.empty()) return;
  level->second.order.remove(run->account());
  level->second.of.erase(mine);
  if (!level->second.of.empty()) return;
  line->second.erase(level);
  if (line->second.empty()) lines_.erase(line);
}

std::vector<SequenceRun*> AdmissionQueue::heads() {
  std::vector<SequenceRun*> heads;
  for (auto& [models, line] : lines_) {
    Level& level = line.begin()->second;
    heads.push_back(level.of.at(level.order.first()).front());
    if (mutated(Mutation::kLastInFirstOut)) heads.back() = level.of.at(level.order.first()).back();
    if (mutated(Mutation::kIgnoreClients)) {
      for (const auto& [account, mine] : level.of) {
        if (mine.front()->order() < heads.back()->order()) heads.back() = mine.front();
      }
    }
  }
  const auto key = [](const SequenceRun* run) {
    return std::tuple(-run->spec().priority, run->account()->served(), run->account()->number(),
                      run->order());
  };
  std::sort(heads.begin(), heads.end(),
            [&](const SequenceRun* a, const SequenceRun* b) { return key(a) < key(b); });
  return heads;
}

void RetryHint::served(TimePoint now) {
  recent_.push_back(now);
  if (recent_.size() > kWindow) recent_.pop_front();
}

Duration RetryHint::estimate(size_t ahead, TimePoint now) const {
  if (recent_.size() < 2) return std::chrono::seconds(1);
  const Duration each = (now - recent_.front()) / static_cast<int64_t>(recent_.size() - 1);
  const auto most = static_cast<size_t>(kMost / std::max(each, Duration(1))) + 1;
  return std::clamp(each * static_cast<int64_t>(std::min(ahead + 1, most)), kLeast, kMost);
}

absl::Status with_retry_hint(absl::Status status, Duration hint) {
  if (mutated(Mutation::kNoRetryHint)) return status;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(hint).count();
  const std::string text = absl::StrCat(ms);
  status.SetPayload(kRetryPayload, absl::Cord(absl::string_view(text)));
  return status;
}

}  // namespace tandem
