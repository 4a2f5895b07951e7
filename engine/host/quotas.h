// What each client may do (ClientLimits): how many requests it may have open, and how many requests
// and tokens it may ask for in a minute.
//
// Rates are token buckets that hold a minute's worth and start full. A request takes one from the
// bucket of requests, and from that of tokens what it turns out to need: the bucket may go below
// nothing, and then no request is let in until it is paid off.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/sched/metrics.h"

namespace tandem {

class Quotas {
  struct Client {
    const ClientLimits* limits = nullptr;
    int open = 0;
    double requests = 0;  // left in the buckets at `as_of`
    double tokens = 0;
    TimePoint as_of;
  };
  using Clients = std::unordered_map<std::string, Client>;

 public:
  // A client's open request, until it is closed or destroyed. Empty for clients without bounds.
  class Open {
   public:
    Open() = default;
    Open(Open&& other) noexcept { *this = std::move(other); }
    Open& operator=(Open&& other) noexcept;
    ~Open() { close(); }

    // Tokens of the prompt or the answer. Thread-safe.
    void charge(int64_t tokens);
    void close();

   private:
    friend class Quotas;
    Quotas* of_ = nullptr;
    Clients::pointer client_ = nullptr;
  };

  // Both outlive it.
  Quotas(const LimitsConfig& limits, const Clock* clock) : limits_(limits), clock_(clock) {}

  // PERMISSION_DENIED for a priority above what the client may ask for.
  absl::Status check_priority(const std::string& client, int priority) const;
  // RESOURCE_EXHAUSTED, with the time after which there is room. `reason` says which bound.
  absl::StatusOr<Open> open(const std::string& client, RejectReason* reason);

  // Clients that are remembered.
  size_t size() const;

 private:
  static constexpr size_t kFewClients = 1024;

  const ClientLimits& limits_of(const std::string& client) const;
  void fill_locked(Client& client) const;
  void forget_locked();

  const LimitsConfig limits_;
  const Clock* const clock_;
  mutable std::mutex mutex_;
  // Guarded by mutex_: those with something open or buckets that are not full, and some others,
  // that are forgotten when there are many.
  Clients clients_;
  size_t forget_at_ = kFewClients;
};

}  // namespace tandem
