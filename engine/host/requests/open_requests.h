// The requests of a deployment that have not ended.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"

namespace tandem {

// Thread-safe.
class OpenRequests {
 public:
  // `clock` outlives this; null: idle_since() is not called.
  explicit OpenRequests(const Clock* clock = nullptr)
      : clock_(clock), idle_since_(clock == nullptr ? TimePoint() : clock->now()) {}

  void add(RequestId id) {
    const MutexLock lock(&mutex_);
    ids_.insert(id);
  }
  void remove(RequestId id) {
    const MutexLock lock(&mutex_);
    if (ids_.erase(id) > 0 && ids_.empty() && clock_ != nullptr) idle_since_ = clock_->now();
  }
  // When the last request ended; if there was none, when this was created. Null: one is open.
  std::optional<TimePoint> idle_since() const {
    const MutexLock lock(&mutex_);
    if (!ids_.empty()) return std::nullopt;
    return idle_since_;
  }
  std::vector<RequestId> ids() const {
    const MutexLock lock(&mutex_);
    return {ids_.begin(), ids_.end()};
  }

 private:
  const Clock* const clock_;
  mutable Mutex mutex_;
  TimePoint idle_since_ ABSL_GUARDED_BY(mutex_);
  std::set<RequestId> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
