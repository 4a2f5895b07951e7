// What requests may take up before they are admitted: one budget of memory for all of them, and of
// it, as of their number, no more than half for one client. So nobody's requests keep out everybody
// else's.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/config.h"
#include "engine/sched/metrics.h"

namespace tandem {

class WaitingBudget {
  struct Client {
    int64_t bytes = 0;
    int requests = 0;
  };
  using Clients = std::unordered_map<std::string, Client>;

 public:
  // A request's part of the budget, until it is released or destroyed. One thread at a time.
  class Part {
   public:
    Part() = default;
    Part(Part&& other) noexcept { *this = std::move(other); }
    Part& operator=(Part&& other) noexcept;
    ~Part() { release(); }

    // What the request takes up from now on. Never refused: the next ones are.
    void resize(int64_t bytes);
    void release();

   private:
    friend class WaitingBudget;
    WaitingBudget* of_ = nullptr;  // null: nothing is held
    Clients::pointer client_ = nullptr;
    int64_t bytes_ = 0;
  };

  // Both outlive it. `metrics` hear of the bytes.
  WaitingBudget(const LimitsConfig& limits, Metrics* metrics);

  // RESOURCE_EXHAUSTED, naming the bound that is reached. `reason` says which.
  absl::StatusOr<Part> take(const std::string& client, int64_t bytes, RejectReason* reason);

  // The largest request that finds room when its client has no other.
  int64_t largest() const { return max_bytes_ / 2; }

 private:
  void change_locked(Clients::pointer client, int64_t bytes);

  const int64_t max_bytes_;
  const int max_per_client_;
  Metrics* const metrics_;
  std::mutex mutex_;
  int64_t bytes_ = 0;  // guarded by mutex_, as is clients_
  Clients clients_;    // those with requests
};

}  // namespace tandem
