// For searches of all orders in which threads can come: one thread plays all of them, as a schedule
// says.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace tandem::test {

// Decisions in the order in which they are asked for: those of a prefix, then zeros. next() moves
// on to the next sequence, so that all are tried, depth first.
class Schedule {
 public:
  size_t choose(size_t options) {
    if (at_ == taken_.size()) taken_.push_back({0, options});
    return taken_[at_++].first;
  }
  bool next() {
    at_ = 0;
    while (!taken_.empty() && taken_.back().first + 1 == taken_.back().second) taken_.pop_back();
    if (taken_.empty()) return false;
    ++taken_.back().first;
    return true;
  }

 private:
  std::vector<std::pair<size_t, size_t>> taken_;  // (decision, options)
  size_t at_ = 0;
};

// Where a thread lets go of it, others may come.
struct ABSL_LOCKABLE SearchMutex {
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { ++locked; }
  void unlock() ABSL_UNLOCK_FUNCTION() {
    --locked;
    if (between) between();
  }
  static inline int locked = 0;
  static inline std::function<void()> between;
};

}  // namespace tandem::test
