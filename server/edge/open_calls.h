// Limits open calls, counted from their headers on. gRPC's own limits begin only when the client
// has acknowledged them.
//
// Also closes connections whose calls mostly end at once: a call that is cancelled frees its place
// immediately, but has cost a call's work (CVE-2023-44487, "rapid reset"). Envoy has a similar
// rule.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class OpenCalls {
 public:
  struct Bounds {
    int64_t total;
    // A connection with more than twice as many is closed. A client that follows the protocol stays
    // below: it has at most this many open, plus some that ended and are still counted.
    int64_t per_connection;
  };  // Per host: host_share(total).
  // A connection is closed when this many of its recent calls, and more than half of them, were
  // abandoned: cancelled or expired within kShortLife or before their request. (A person who types
  // cancels completions, but not as fast.)
  static constexpr int64_t kMaxAbandoned = 200;
  static constexpr Duration kShortLife = std::chrono::milliseconds(50);

  // `close` closes the connection of a peer (in gRPC's notation).
  OpenCalls(Bounds bounds, std::function<void(const std::string& peer)> close)
      : bounds_(bounds), close_(std::move(close)) {}

  // Counts a new call. RESOURCE_EXHAUSTED: the call must end with this status, without leave().
  absl::Status enter(const std::string& peer);
  void leave(const std::string& peer, bool abandoned = false);

  int64_t open() const;
  bool has_any(const std::string& peer) const;
  int64_t refused() const;    // since start
  int64_t closed() const;     // connections, for abandoned calls; since start
  size_t remembered() const;  // peers

 private:
  struct Peer {
    int64_t open = 0;
    int64_t ended = 0, abandoned = 0;  // recent calls
  };
  // Peers without open calls are remembered for their abandoned ones. Connections report no end, so
  // the memory is bounded by forgetting all such peers at this number.
  static constexpr size_t kMaxRemembered = 4096;

  bool too_many_abandoned(Peer* peer, bool abandoned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Bounds bounds_;
  const std::function<void(const std::string&)> close_;
  mutable Mutex mutex_;
  int64_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t closed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Peer> by_peer_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, int64_t> by_host_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
