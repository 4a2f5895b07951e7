// Counts calls from their first header on: what gRPC's own limits do not, which begin when the
// client has acknowledged them.
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
    // Connections with more than twice as many are closed: a client that keeps to the protocol has
    // no more than these open, and some that have ended and are not counted out yet.
    int64_t per_connection;
  };  // Of one host's connections: host_share(total).
  // `close` closes the connection of this peer (as gRPC names it).
  OpenCalls(Bounds bounds, std::function<void(const std::string& peer)> close)
      : bounds_(bounds), close_(std::move(close)) {}

  // A call has come; RESOURCE_EXHAUSTED: it must end with that, and does not leave().
  absl::Status enter(const std::string& peer);
  void leave(const std::string& peer);

  int64_t open() const;
  bool any_of(const std::string& peer) const;
  int64_t refused() const;  // since the start

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
