// What each client may do (ClientLimits): how many requests it may have open, and how many requests
// and tokens it may ask for in a minute.
//
// Rates are token buckets that hold a minute's worth and start full. A request takes one from the
// bucket of requests, and from that of tokens what it turns out to need: the bucket may go below
// nothing, and then no request is let in until it is paid off.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/base/stats.h"
#include "engine/sched/metrics.h"

namespace tandem {

// What a client asks for and is refused, for metrics.
struct ClientUse {
  Gauge open;                                   // requests
  Counter requests;                             // let in
  Counter tokens;                               // of their prompts and answers
  std::array<Counter, kRejectReasons> refused;  // by the quota that was used up
};

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
  // A client's open request, until it is closed or destroyed.
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
    ClientUse* use_ = nullptr;  // null: it is closed
    Quotas* of_ = nullptr;      // these two null: the client has no bounds
    Clients::pointer client_ = nullptr;
  };

  // `clock` outlives it.
  Quotas(const LimitsConfig& limits, const Clock* clock);

  // PERMISSION_DENIED for a priority above what the client may ask for.
  absl::Status check_priority(const std::string& client, int priority) const;
  // RESOURCE_EXHAUSTED, with the time after which there is room. `reason` says which bound.
  absl::StatusOr<Open> open(const std::string& client, RejectReason* reason);

  // By client: those that the limits name, and under "" all others together.
  const std::map<std::string, ClientUse>& uses() const { return uses_; }

  // Clients that are remembered.
  size_t size() const;

 private:
  static constexpr size_t kFewClients = 1024;

  const ClientLimits& limits_of(const std::string& client) const;
  ClientUse& use_of(const std::string& client);
  // Counts the request in where the client's bounds allow it.
  absl::StatusOr<Open> open_bounded(const std::string& client, const ClientLimits& limits,
                                    RejectReason* reason);
  void fill_locked(Client& client) const;
  void forget_locked();

  const LimitsConfig limits_;
  const Clock* const clock_;
  std::map<std::string, ClientUse> uses_;  // as many as at the start
  mutable std::mutex mutex_;
  // Guarded by mutex_: those with something open or buckets that are not full, and some others,
  // that are forgotten when there are many.
  Clients clients_;
  size_t forget_at_ = kFewClients;
};

}  // namespace tandem
