// Moments at which the loop has to look at a sequence again: deadlines, limits, patience.
//
// A timer says when, not why: who is due looks at all that it waits for. Loop thread only.
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
  // kNever sets nothing. The same moment may be set several times, and counts as often.
  void set(TimePoint when, RequestId id) {
    if (when != kNever) timers_.emplace(when, id);
  }
  // Takes one back; nothing, where none is set.
  void drop(TimePoint when, RequestId id) {
    const auto it = timers_.find({when, id});
    if (it != timers_.end()) timers_.erase(it);
  }
  // kNever: none is set.
  TimePoint next() const { return timers_.empty() ? kNever : timers_.begin()->first; }
  // Takes the earliest, if its moment has come.
  std::optional<RequestId> take_due(TimePoint now) {
    if (now < next() || timers_.empty()) return std::nullopt;
    return timers_.extract(timers_.begin()).value().second;
  }

 private:
  std::multiset<std::pair<TimePoint, RequestId>> timers_;
};

}  // namespace tandem
