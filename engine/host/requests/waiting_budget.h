// Bounds the memory of requests before admission. One client gets at most half of the memory and of
// the number of requests.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/config.h"
#include "engine/base/mutex.h"
#include "engine/sched/metrics.h"

namespace tandem {

class WaitingBudget {
  struct Client {
    int64_t bytes = 0;
    int requests = 0;
  };
  using Clients = std::unordered_map<std::string, Client>;

 public:
  // A request's share of the budget, until it is released or destroyed. Not thread-safe.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { release(); }

    // Sets the bytes of the request. May exceed the budget, so that later requests are refused.
    void resize(int64_t bytes);
    void release();

   private:
    friend class WaitingBudget;
    WaitingBudget* of_ = nullptr;  // null: released
    Clients::pointer client_ = nullptr;
    int64_t bytes_ = 0;
  };

  // `metrics`, with the gauge waiting_bytes, outlives the budget.
  WaitingBudget(const LimitsConfig& limits, Metrics* metrics);

  // RESOURCE_EXHAUSTED with the bound that is reached, which also sets `reason`.
  absl::StatusOr<Share> reserve(const std::string& client, int64_t bytes, RejectReason* reason);

  // The largest request that fits if its client has no other.
  int64_t largest() const { return max_bytes_ / 2; }

 private:
  void change_locked(Clients::pointer client, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_bytes_;
  const int max_per_client_;
  Metrics* const metrics_;
  Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Clients clients_ ABSL_GUARDED_BY(mutex_);  // with at least one request
};

}  // namespace tandem
