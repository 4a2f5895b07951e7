// Functions that run at a point in time unless they are stopped first. One thread runs them all.
//
// Thread-safe.
#pragma once

#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class Timeouts {
 public:
  // Called under the lock of the timeouts, so it must not call them; its result is called without
  // the lock. It may be empty.
  using Expire = std::function<std::function<void()>()>;

  // One function. stop() and the destructor prevent the call of `expire`, or return after it. Not
  // thread-safe.
  class Timeout {
   public:
    Timeout() = default;
    Timeout(const Timeout&) = delete;
    Timeout& operator=(const Timeout&) = delete;
    ~Timeout() { stop(); }

    // REQUIRES: it is not started. `timeouts` outlive it until stop().
    void start(Timeouts* timeouts, Duration time, Expire expire);
    void stop();

   private:
    friend class Timeouts;
    Timeouts* of_ = nullptr;  // null: not started, or stopped
    TimePoint at_;
    Expire expire_;
  };

  // `clock` outlives this. Nothing runs before run_thread().
  explicit Timeouts(const Clock* clock) : clock_(clock) {}
  ~Timeouts();  // REQUIRES: every timeout is stopped

  // Runs expired functions on a thread of its own, as the steady clock says. Call once.
  void run_thread();

  // Runs the expired functions. Returns the time of the next one, or kNever.
  TimePoint run_expired();

 private:
  void run();

  const Clock* const clock_;
  Mutex mutex_;
  CondVar changed_;
  std::set<std::pair<TimePoint, Timeout*>> pending_ ABSL_GUARDED_BY(mutex_);
  bool quit_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem
