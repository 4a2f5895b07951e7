// Quotas of each client (ClientLimits): open requests, and requests and tokens per minute.
//
// Rates are token buckets that hold one minute's worth and start full. A request takes 1 from the
// bucket of requests. Its tokens are charged as they are used, so that bucket may become negative;
// then requests are refused until it is positive again.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/base/mutex.h"
#include "engine/base/stats.h"
#include "engine/sched/metrics.h"

namespace tandem {

// Metrics of one client.
struct ClientUse {
  Gauge open;                                   // requests now open
  Counter requests;                             // accepted
  Counter tokens;                               // of their prompts and answers
  std::array<Counter, kRejectReasons> refused;  // by the exhausted quota
};

class Quotas {
  struct Client {
    const ClientLimits* limits = nullptr;
    int open = 0;
    int parts = 0;        // of open calls
    double requests = 0;  // in the bucket at `as_of`
    double tokens = 0;
    TimePoint as_of;
  };
  using Clients = std::unordered_map<std::string, Client>;

 public:
  // Counts as an open request, unless it is part of one, until it is closed or destroyed.
  class OpenRequest {
   public:
    OpenRequest() = default;
    OpenRequest(OpenRequest&& other) noexcept { *this = std::move(other); }
    OpenRequest& operator=(OpenRequest&& other) noexcept;
    ~OpenRequest() { close(); }

    // Charges tokens of the prompt or the answer. Thread-safe.
    void charge(int64_t tokens);
    void close();

   private:
    friend class Quotas;
    ClientUse* use_ = nullptr;  // null: closed
    Quotas* of_ = nullptr;      // null, with client_: the client has no quotas
    Clients::pointer client_ = nullptr;
    bool part_ = false;
  };

  // `clock` outlives the quotas.
  Quotas(const LimitsConfig& limits, const Clock* clock);

  int max_priority(const std::string& client) const { return limits_of(client).max_priority; }
  // PERMISSION_DENIED for a priority above the client's max_priority.
  absl::Status check_priority(const std::string& client, int priority) const;
  // RESOURCE_EXHAUSTED with a retry delay; `reason` gets the exhausted quota.
  absl::StatusOr<OpenRequest> open(const std::string& client, RejectReason* reason);
  // A part of an open request: only its tokens count. It is never refused.
  OpenRequest open_part(const std::string& client);

  // By client that the limits name; all others together under "".
  const std::map<std::string, ClientUse>& uses() const { return uses_; }

  // Clients with state, for tests.
  size_t size() const;

 private:
  static constexpr size_t kFewClients = 1024;

  const ClientLimits& limits_of(const std::string& client) const;
  ClientUse& use_of(const std::string& client);
  Clients::value_type& state_locked(const std::string& client, const ClientLimits& limits)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For a client with quotas.
  absl::StatusOr<OpenRequest> open_bounded(const std::string& client, const ClientLimits& limits,
                                           RejectReason* reason);
  void fill_locked(Client& client) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void forget_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LimitsConfig limits_;
  const Clock* const clock_;
  std::map<std::string, ClientUse> uses_;  // complete from the start
  mutable Mutex mutex_;
  // Clients without open requests or parts and with full buckets are dropped when there are many.
  Clients clients_ ABSL_GUARDED_BY(mutex_);
  size_t forget_at_ ABSL_GUARDED_BY(mutex_) = kFewClients;
};

}  // namespace tandem
