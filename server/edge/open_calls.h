// Limits open calls, counted from their headers on. gRPC's own limits begin only when the client
// has acknowledged them.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
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
  // `close` closes the connection of a peer (in gRPC's notation).
  OpenCalls(Bounds bounds, std::function<void(const std::string& peer)> close)
      : bounds_(bounds), close_(std::move(close)) {}

  // Counts a new call. RESOURCE_EXHAUSTED: the call must end with this status, without leave().
  absl::Status enter(const std::string& peer);
  void leave(const std::string& peer);

  int64_t open() const;
  bool has_any(const std::string& peer) const;
  int64_t refused() const;  // since start

 private:
  const Bounds bounds_;
  const std::function<void(const std::string&)> close_;
  mutable Mutex mutex_;
  int64_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> by_peer_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, int64_t> by_host_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
