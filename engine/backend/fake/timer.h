// Timers of fake devices: a thread in real time, or virtual time advanced by tests.
#pragma once

#include <functional>
#include <map>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class Timer {
 public:
  virtual ~Timer() = default;
  // Calls `f` at `when` or soon after. Calls for the same time run in order.
  virtual void at(TimePoint when, std::function<void()> f) = 0;
};

// Calls on its own thread. The destructor makes the remaining calls at once, in order.
class ThreadTimer final : public Timer {
 public:
  ThreadTimer();
  ~ThreadTimer() override;
  void at(TimePoint when, std::function<void()> f) override;

 private:
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::multimap<TimePoint, std::function<void()>> due_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Calls when the test advances the clock. Not thread-safe.
class VirtualTimer final : public Timer {
 public:
  explicit VirtualTimer(VirtualClock* clock) : clock_(clock) {}
  void at(TimePoint when, std::function<void()> f) override { due_.emplace(when, std::move(f)); }

  TimePoint next() const { return due_.empty() ? kNever : due_.begin()->first; }
  // Advances the clock to the next call and makes it. False: none.
  bool fire_next();

 private:
  VirtualClock* const clock_;
  std::multimap<TimePoint, std::function<void()>> due_;
};

}  // namespace tandem
