// Requests that wait for admission: bounded in number and in prompt tokens; by priority, then by
// whose turn it is (fairness.h), first in first out within one client.
//
// Requests that use the same models stand in one line, so that the first of a line, which waits for
// pages of its models, holds up nobody else's. Pure bookkeeping, loop thread only.
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

  // RESOURCE_EXHAUSTED, naming the bound, when there is no room. `reason` says which bound.
  absl::Status check(int64_t prompt_tokens, RejectReason* reason) const;
  // REQUIRES: the run has an account.
  void push(SequenceRun* run);
  void erase(SequenceRun* run);  // nothing, if it does not wait here
  // The first of each line, in the order in which they are served.
  std::vector<SequenceRun*> heads();

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  int64_t tokens() const { return tokens_; }

 private:
  struct Level {  // one priority of a line
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

// How long what waits will take, by how fast it went lately: the hint that goes with a refusal.
class RetryHint {
 public:
  static constexpr Duration kLeast = std::chrono::milliseconds(100);
  static constexpr Duration kMost = std::chrono::seconds(30);

  // A request ended while others wait: room for one of them.
  void served(TimePoint now);
  void idle() { lately_.clear(); }  // nobody waits any more: what was measured grows old
  // Until about `ahead` requests will have been served, within [kLeast, kMost].
  Duration estimate(size_t ahead, TimePoint now) const;

 private:
  static constexpr size_t kWindow = 32;
  std::deque<TimePoint> lately_;
};

// `status` with `hint` in its payload kRetryPayload.
absl::Status with_retry_hint(absl::Status status, Duration hint);

}  // namespace tandem
