// The account of the memory that clients make the server hold.
//
// A request message, its parsed form, a queued prompt and an unread answer are each charged to a
// client and its host, from the first read to the last write. Above the total, or above the share
// of one client or host, a charge is refused. A charge is released when it is destroyed.
//
// The account is thread-safe. A Charge is not.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"

namespace tandem {

class MemoryAccount {
  struct Holder {
    int64_t bytes = 0;
    int64_t charges = 0;
  };
  using Holders = std::unordered_map<std::string, Holder>;

 public:
  // Bytes of a client and its host. The default charge belongs to no account, and its size is not
  // counted.
  class Charge {
   public:
    Charge() = default;
    Charge(Charge&& other) noexcept { *this = std::move(other); }
    Charge& operator=(Charge&& other) noexcept;
    ~Charge() { release(); }

    // Sets the size. RESOURCE_EXHAUSTED: a limit is reached, and the size is unchanged. Shrinking
    // always succeeds.
    absl::Status try_resize(int64_t bytes);
    // Sets the size even above the limits. For memory that exists and whose producer stops by other
    // means.
    void resize(int64_t bytes);
    // Ends the charge; later sizes are not counted.
    void release();

    int64_t bytes() const { return bytes_; }

   private:
    friend class MemoryAccount;
    MemoryAccount* of_ = nullptr;
    Holders::pointer client_ = nullptr;  // null: none, as host_
    Holders::pointer host_ = nullptr;
    int64_t bytes_ = 0;
  };

  // `total` in bytes, > 0.
  explicit MemoryAccount(int64_t total);
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;
  ~MemoryAccount();  // REQUIRES: every charge is released

  // Charges `bytes` >= 0. RESOURCE_EXHAUSTED with a retry delay if a limit is reached. The account
  // outlives the charge. An empty client (not yet known) or host (a unix socket) has no limit.
  absl::StatusOr<Charge> charge(const std::string& client, const std::string& host, int64_t bytes);

  int64_t total() const { return total_; }
  // The most that one client may hold: half of the total.
  int64_t client_limit() const { return total_ / 2; }
  // The most that one host may hold: three quarters of the total.
  int64_t host_limit() const { return total_ - total_ / 4; }

  int64_t used() const;
  int64_t peak() const;     // the largest used() since start
  int64_t refused() const;  // charges since start
  int64_t charges() const;  // not yet released

 private:
  absl::Status check_locked(Holders::pointer client, Holders::pointer host, int64_t more)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void add_locked(Holders::pointer client, Holders::pointer host, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Holders::pointer enter(Holders* holders, const std::string& name);
  static void leave(Holders* holders, Holders::pointer holder);

  const int64_t total_;
  mutable Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t charges_ ABSL_GUARDED_BY(mutex_) = 0;
  Holders clients_ ABSL_GUARDED_BY(mutex_);  // with at least one charge, as hosts_
  Holders hosts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
