#include "engine/host/requests/waiting_budget.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status full(absl::string_view what, absl::string_view reason) {
  return with_reason(
      absl::ResourceExhaustedError(absl::StrCat("queue is full: ", what, "; try again later")),
      reason);
}

}  // namespace

WaitingBudget::Share& WaitingBudget::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  release();
  of_ = std::exchange(other.of_, nullptr);
  client_ = other.client_;
  bytes_ = other.bytes_;
  return *this;
}

void WaitingBudget::Share::resize(int64_t bytes) {
  if (!of_) return;
  const MutexLock lock(&of_->mutex_);
  of_->change_locked(client_, bytes - bytes_);
  bytes_ = bytes;
}

void WaitingBudget::Share::release() {
  WaitingBudget* const of = std::exchange(of_, nullptr);
  if (!of) return;
  const MutexLock lock(&of->mutex_);
  of->change_locked(client_, -bytes_);
  if (--client_->second.requests == 0) of->clients_.erase(client_->first);
}

WaitingBudget::WaitingBudget(const LimitsConfig& limits, Metrics* metrics)
    : max_bytes_(limits.max_waiting_bytes),
      max_per_client_(limits.max_waiting_per_client > 0 ? limits.max_waiting_per_client
                                                        : std::max(1, limits.max_waiting / 2)),
      metrics_(metrics) {}

absl::StatusOr<WaitingBudget::Share> WaitingBudget::reserve(const std::string& client,
                                                            int64_t bytes, RejectReason* reason) {
  const MutexLock lock(&mutex_);
  const Clients::pointer own = &*clients_.try_emplace(client).first;
  const auto refuse = [&](absl::Status status, RejectReason why)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                            *reason = why;
                            if (own->second.requests == 0) clients_.erase(client);
                            return status;
                          };
  if (own->second.requests >= max_per_client_) {
    return refuse(
        full(absl::StrCat(own->second.requests, " requests of client ", quote_value(client),
                          " wait; allowed: ", max_per_client_, " (limits.max_waiting_per_client)"),
             "CLIENT_QUEUE_FULL"),
        RejectReason::kQueueClient);
  }
  if (own->second.bytes + bytes > max_bytes_ / 2) {
    return refuse(full(absl::StrCat(own->second.bytes, " bytes of client ", quote_value(client),
                                    " wait, and this request has ", bytes, "; allowed: ",
                                    max_bytes_ / 2, " (half of limits.max_waiting_bytes)"),
                       "CLIENT_QUEUE_FULL"),
                  RejectReason::kQueueClient);
  }
  if (bytes_ + bytes > max_bytes_) {
    return refuse(full(absl::StrCat(bytes_, " bytes wait, and this request has ", bytes,
                                    "; allowed: ", max_bytes_, " (limits.max_waiting_bytes)"),
                       "QUEUE_FULL"),
                  RejectReason::kQueueBytes);
  }
  Share share;
  share.of_ = this;
  share.client_ = own;
  share.bytes_ = bytes;
  ++own->second.requests;
  change_locked(own, bytes);
  return share;
}

void WaitingBudget::change_locked(Clients::pointer client, int64_t bytes) {
  bytes_ += bytes;
  client->second.bytes += bytes;
  metrics_->waiting_bytes.set(static_cast<double>(bytes_));
}

}  // namespace tandem
