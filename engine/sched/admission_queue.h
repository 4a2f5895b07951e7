// The queue of requests before admission, bounded in requests and prompt tokens. Ordered by
// priority, then by the clients' fair shares (fairness.h), then first in, first out.
//
// Requests that use the same models form one line, so a line that waits for pages of its models
// does not block other lines. Bookkeeping only. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/sched/fairness.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

class AdmissionQueue {
 public:
  explicit AdmissionQueue(const LimitsConfig& limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED if the queue is full; the message and `reason` name the exceeded bound.
  absl::Status check(int64_t prompt_tokens, RejectReason* reason) const;
  // REQUIRES: the run has an account.
  void push(SequenceRun* run);
  void erase(SequenceRun* run);  // no-op if it is not queued
  // The first request of each line, in service order.
  std::vector<SequenceRun*> heads();

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  int64_t tokens() const { return tokens_; }

 private:
  struct Level {  // the requests of one priority in a line
    ServiceOrder order;
    std::unordered_map<const Account*, std::deque<SequenceRun*>> of;
  };
  using Line = std::map<int, Level, std::greater<>>;  // by priority
  static std::vector<ModelId> line_of(const SequenceRun& run);

  const LimitsConfig limits_;
  std::map<std::vector<ModelId>, Line> lines_;  // none is empty
  size_t size_ = 0;
  int64_t tokens_ = 0;
};

// Estimates the retry delay of a refused request from the recent service rate.
class RetryHint {
 public:
  static constexpr Duration kLeast = std::chrono::milliseconds(100);
  static constexpr Duration kMost = std::chrono::seconds(30);

  // A request ended while others wait.
  void served(TimePoint now);
  void idle() { recent_.clear(); }  // the queue is empty: drops outdated measurements
  // The time in which about `ahead` requests will be served, within [kLeast, kMost].
  Duration estimate(size_t ahead, TimePoint now) const;

 private:
  static constexpr size_t kWindow = 32;
  std::deque<TimePoint> recent_;
};

// `status` with `hint` in its payload kRetryPayload.
absl::Status with_retry_hint(absl::Status status, Duration hint);

}  // namespace tandem
