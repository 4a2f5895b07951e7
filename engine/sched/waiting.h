// Requests that wait for admission: bounded in number and in prompt tokens; by priority, first in
// first out within one. Pure bookkeeping, loop thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

class WaitingRoom {
 public:
  explicit WaitingRoom(const LimitsConfig& limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED, naming the bound, when there is no room. `reason` says which bound.
  absl::Status check(int64_t prompt_tokens, RejectReason* reason) const;
  void push(SequenceRun* run);
  SequenceRun* front() const { return *order_.begin(); }  // REQUIRES: not empty
  void erase(SequenceRun* run);

  bool empty() const { return order_.empty(); }
  size_t size() const { return order_.size(); }
  int64_t tokens() const { return tokens_; }

 private:
  const LimitsConfig limits_;
  std::set<SequenceRun*, decltype(&SequenceRun::earlier)> order_{&SequenceRun::earlier};
  int64_t tokens_ = 0;
};

}  // namespace tandem
