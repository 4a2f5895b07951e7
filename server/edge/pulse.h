// Whether a thread that does one thing after the other still comes to what is asked of it.
#pragma once

#include <atomic>

#include "engine/base/clock.h"

namespace tandem {

// ask() and owed() belong to the thread that watches, beat() to the one that is watched.
class Pulse {
 public:
  // Calls `post`, which has the watched thread call beat() soon; not while that is owed already.
  template <class Post>
  void ask(Post post) {
    if (owes_.load()) return;
    asked_ = std::chrono::steady_clock::now();
    owes_.store(true);
    post();
  }
  void beat() { owes_.store(false); }

  // Since when the thread has not come to it; zero: it has.
  Duration owed() const {
    return owes_.load() ? std::chrono::steady_clock::now() - asked_ : Duration::zero();
  }

 private:
  std::atomic<bool> owes_{false};
  TimePoint asked_;
};

}  // namespace tandem
