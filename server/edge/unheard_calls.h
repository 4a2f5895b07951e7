// Counts calls that gRPC has made and that no service has heard of yet, by connection.
//
// gRPC makes a call of every header that it reads, and tells a service on another thread. One that
// a client sends on and on, before it has acknowledged any limit, is read as fast as it comes, so
// calls would gather between the two threads. These are refused where they are made.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace tandem {

class UnheardCalls {
 public:
  struct Bounds {
    int64_t total;
    int64_t per_connection;
  };
  explicit UnheardCalls(Bounds bounds) : bounds_(bounds) {}

  // A call was made; false: it is one too many, and is to be refused at once. `connection` names
  // one while it has calls.
  bool made(const void* connection);
  // A service knows of a call that was made.
  void heard(const void* connection);

  int64_t unheard() const;
  int64_t refused() const;  // since the start

 private:
  const Bounds bounds_;
  mutable std::mutex mutex_;  // guards what follows
  int64_t unheard_ = 0;
  int64_t refused_ = 0;
  absl::flat_hash_map<const void*, int64_t> by_connection_;
};

}  // namespace tandem
