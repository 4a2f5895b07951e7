// Measures whether a work queue's thread still makes progress.
#pragma once

#include <atomic>

#include "engine/base/clock.h"

namespace tandem {

// ask() and overdue() are called on the watching thread, beat() on the watched one.
class Pulse {
 public:
  // Calls `post`, which makes the watched thread call beat() soon, unless a beat is still pending.
  template <class Post>
  void ask(Post post) {
    if (pending_.load()) return;
    asked_ = std::chrono::steady_clock::now();
    pending_.store(true);
    post();
  }
  void beat() { pending_.store(false); }

  // Time since the pending request; zero if none is pending.
  Duration overdue() const {
    return pending_.load() ? std::chrono::steady_clock::now() - asked_ : Duration::zero();
  }

 private:
  std::atomic<bool> pending_{false};
  TimePoint asked_;
};

}  // namespace tandem
