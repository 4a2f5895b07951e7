// Clocks. Code that waits or measures takes a Clock, so that tests and the simulator can run on
// virtual time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline constexpr TimePoint kNever = TimePoint::max();

inline double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// Advances only when a test advances it. Thread-safe.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(nanos_.load())); }
  void advance(Duration d) { nanos_.fetch_add(d.count()); }
  void advance_to(TimePoint t) {
    if (t > now()) nanos_.store(t.time_since_epoch().count());
  }

 private:
  std::atomic<int64_t> nanos_{0};
};

}  // namespace tandem
