// Limits the calls, per connection and in total, that gRPC has created and no service has received.
//
// gRPC creates a call for every header that it reads and notifies a service on another thread. A
// client that sends headers without end, before it has acknowledged any limit, would accumulate
// calls between the two threads. The excess is rejected on the reading thread.
//
// A call that is cancelled or expires in gRPC's own queue is never received, so entries expire.
// (If services await Bounds::max_total() calls, gRPC queues none.)
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class PendingCalls {
 public:
  struct Bounds {
    int64_t total;
    int64_t per_connection;
    // At the total, `reserve` more are admitted on connections with fewer than `reserve_threshold`,
    // so that a few busy connections cannot exclude the others.
    int64_t reserve_threshold = 0;
    int64_t reserve = 0;

    // The most calls on any number of connections.
    int64_t max_total() const { return total + reserve; }
  };
  // An entry expires after this time, or at most twice this time.
  static constexpr Duration kExpiry = std::chrono::seconds(30);

  // `clock` outlives this.
  PendingCalls(Bounds bounds, const Clock* clock)
      : bounds_(bounds), clock_(clock), next_expiry_(clock->now() + kExpiry) {}

  // Counts a new call. False: it exceeds a limit and must be rejected. `connection` identifies the
  // connection while it has calls.
  bool admit(const void* connection);
  // A service has received an admitted call.
  void received(const void* connection);

  const Bounds& bounds() const { return bounds_; }

  int64_t pending() const;
  int64_t refused() const;  // since start
  int64_t expired() const;  // the same: entries of calls that were never received

 private:
  // Calls of a connection, created before or since the last expiry.
  struct Counts {
    int64_t before = 0, since = 0;
    int64_t all() const { return before + since; }
  };
  void expire() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Bounds bounds_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  // Mutable: reading the counts expires old entries first.
  mutable TimePoint next_expiry_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable int64_t expired_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable absl::flat_hash_map<const void*, Counts> by_connection_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
