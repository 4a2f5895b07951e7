// Counts calls that gRPC has made and that no service has heard of yet, by connection.
//
// gRPC makes a call of every header that it reads, and tells a service on another thread. One that
// a client sends on and on, before it has acknowledged any limit, is read as fast as it comes, so
// calls would gather between the two threads. These are refused where they are made.
//
// Not every call that is made is ever heard of: one that waits in gRPC for a service that is ready
// for it, and is cancelled or meets its deadline there, just ends. So places last for a time.
// (Where as many calls are waited for as are let in, Bounds::max_total(), none has to wait there.)
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
    // When these are taken there are `reserve` more, for connections that have fewer than
    // `reserve_threshold`: so that one is not shut out by a few that have many.
    int64_t reserve_threshold = 0;
    int64_t reserve = 0;

    // There are never more, of however many connections.
    int64_t max_total() const { return total + reserve; }
  };
  // A call that nobody has heard of for this long, or twice as long at most, ended pending.
  static constexpr Duration kExpiry = std::chrono::seconds(30);

  // `clock` outlives it.
  PendingCalls(Bounds bounds, const Clock* clock)
      : bounds_(bounds), clock_(clock), next_expiry_(clock->now() + kExpiry) {}

  // A call was made; false: it is one too many, and is to be refused at once. `connection` names
  // one while it has calls.
  bool admit(const void* connection);
  // A service knows of a call that was made.
  void received(const void* connection);

  const Bounds& bounds() const { return bounds_; }

  int64_t pending() const;
  int64_t refused() const;  // since the start
  int64_t expired() const;  // likewise: places of calls that were never heard of

 private:
  // Calls of a connection, by whether they were made since the last turn.
  struct Counts {
    int64_t before = 0, since = 0;
    int64_t all() const { return before + since; }
  };
  void expire() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Bounds bounds_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whoever looks, places that are too old are gone.
  mutable TimePoint next_expiry_ ABSL_GUARDED_BY(mutex_);  // next
  mutable int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable int64_t expired_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable absl::flat_hash_map<const void*, Counts> by_connection_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
