// Times at which the loop must check a sequence: deadlines, limits, stalled readers.
//
// A timer has no reason: the loop checks everything that the sequence waits for. Loop thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/ids.h"

namespace tandem {

inline Duration duration(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

class Timers {
 public:
  // kNever sets nothing. Equal timers count separately.
  void set(TimePoint when, RequestId id) {
    if (when != kNever) timers_.emplace(when, id);
  }
  // Removes one timer, if there is one.
  void drop(TimePoint when, RequestId id) {
    const auto it = timers_.find({when, id});
    if (it != timers_.end()) timers_.erase(it);
  }
  // kNever: none is set.
  TimePoint next() const { return timers_.empty() ? kNever : timers_.begin()->first; }
  // Removes and returns the earliest timer, if it is due.
  std::optional<RequestId> take_due(TimePoint now) {
    if (now < next() || timers_.empty()) return std::nullopt;
    return timers_.extract(timers_.begin()).value().second;
  }

 private:
  std::multiset<std::pair<TimePoint, RequestId>> timers_;
};

}  // namespace tandem
