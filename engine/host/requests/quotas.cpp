#include "engine/host/requests/quotas.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/sched/admission_queue.h"

namespace tandem {
namespace {

constexpr double kMinute = 60;

bool bounded(const ClientLimits& limits) {
  return limits.max_requests > 0 || limits.requests_per_minute > 0 || limits.tokens_per_minute > 0;
}

// Holds at least 1, or no request would ever pass.
double bucket_size(double per_minute) { return std::max(per_minute, 1.0); }

absl::Status exceeded(const std::string& client, absl::string_view what, double allowed,
                      absl::string_view field, double seconds) {
  const auto wait = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return with_retry_hint(
      with_reason(absl::ResourceExhaustedError(absl::StrCat(
                      "client ", quote_value(client), ": ", what, "; allowed: ", allowed,
                      " (limits.clients, ", field, "); try again later")),
                  "QUOTA_EXCEEDED"),
      std::max(wait, Duration(std::chrono::milliseconds(1))));
}

}  // namespace

Quotas::Quotas(const LimitsConfig& limits, const Clock* clock) : limits_(limits), clock_(clock) {
  uses_.try_emplace("");
  for (const auto& [name, bounds] : limits.clients) uses_.try_emplace(name);
}

Quotas::OpenRequest& Quotas::OpenRequest::operator=(OpenRequest&& other) noexcept {
  if (this == &other) return *this;
  close();
  use_ = std::exchange(other.use_, nullptr);
  of_ = std::exchange(other.of_, nullptr);
  client_ = other.client_;
  part_ = other.part_;
  return *this;
}

void Quotas::OpenRequest::charge(int64_t tokens) {
  if (use_) use_->tokens.add(tokens);
  if (!of_ || client_->second.limits->tokens_per_minute == 0) return;
  const MutexLock lock(&of_->mutex_);
  of_->fill_locked(client_->second);
  client_->second.tokens -= static_cast<double>(tokens);
}

void Quotas::OpenRequest::close() {
  ClientUse* const use = std::exchange(use_, nullptr);
  if (use && !part_) use->open.add(-1);
  Quotas* const of = std::exchange(of_, nullptr);
  if (!of) return;
  const MutexLock lock(&of->mutex_);
  --(part_ ? client_->second.parts : client_->second.open);
}

const ClientLimits& Quotas::limits_of(const std::string& client) const {
  const auto own = limits_.clients.find(client);
  return own == limits_.clients.end() ? limits_.default_client : own->second;
}

absl::Status Quotas::check_priority(const std::string& client, int priority) const {
  const int most = limits_of(client).max_priority;
  if (priority <= most) return absl::OkStatus();
  return with_reason(absl::PermissionDeniedError(absl::StrCat(
                         "priority: ", priority, "; allowed: at most ", most, " for client ",
                         quote_value(client), " (limits.clients, max_priority)")),
                     "PRIORITY_NOT_ALLOWED");
}

ClientUse& Quotas::use_of(const std::string& client) {
  const auto own = uses_.find(client);
  return own == uses_.end() ? uses_.at("") : own->second;
}

absl::StatusOr<Quotas::OpenRequest> Quotas::open(const std::string& client, RejectReason* reason) {
  const ClientLimits& limits = limits_of(client);
  ClientUse& use = use_of(client);
  absl::StatusOr<OpenRequest> open = OpenRequest();
  if (bounded(limits)) open = open_bounded(client, limits, reason);
  if (!open.ok()) {
    use.refused[static_cast<size_t>(*reason)].add();
    return open;
  }
  use.requests.add();
  use.open.add(1);
  open->use_ = &use;
  return open;
}

Quotas::OpenRequest Quotas::open_part(const std::string& client) {
  OpenRequest part;
  part.part_ = true;
  part.use_ = &use_of(client);
  const ClientLimits& limits = limits_of(client);
  if (!bounded(limits)) return part;
  const MutexLock lock(&mutex_);
  part.of_ = this;
  part.client_ = &state_locked(client, limits);
  ++part.client_->second.parts;
  return part;
}

Quotas::Clients::value_type& Quotas::state_locked(const std::string& client,
                                                  const ClientLimits& limits) {
  if (clients_.size() >= forget_at_) forget_locked();
  const auto [place, fresh] = clients_.try_emplace(client);
  if (fresh) {
    place->second = {.limits = &limits,
                     .requests = bucket_size(limits.requests_per_minute),
                     .tokens = limits.tokens_per_minute,
                     .as_of = clock_->now()};
  }
  fill_locked(place->second);
  return *place;
}

absl::StatusOr<Quotas::OpenRequest> Quotas::open_bounded(const std::string& client,
                                                         const ClientLimits& limits,
                                                         RejectReason* reason) {
  const MutexLock lock(&mutex_);
  Clients::value_type& state = state_locked(client, limits);
  Client& own = state.second;
  if (limits.max_requests > 0 && own.open >= limits.max_requests) {
    *reason = RejectReason::kQuotaOpen;
    return exceeded(client, absl::StrCat(own.open, " requests are open"), limits.max_requests,
                    "max_requests", 1);
  }
  if (limits.requests_per_minute > 0 && own.requests < 1) {
    *reason = RejectReason::kQuotaRequests;
    return exceeded(client, "too many requests", limits.requests_per_minute, "requests_per_minute",
                    (1 - own.requests) * kMinute / limits.requests_per_minute);
  }
  if (limits.tokens_per_minute > 0 && own.tokens <= 0) {
    *reason = RejectReason::kQuotaTokens;
    return exceeded(client, "too many tokens", limits.tokens_per_minute, "tokens_per_minute",
                    (1 - own.tokens) * kMinute / limits.tokens_per_minute);
  }
  ++own.open;
  own.requests -= 1;
  OpenRequest open;
  open.of_ = this;
  open.client_ = &state;
  return open;
}

size_t Quotas::size() const {
  const MutexLock lock(&mutex_);
  return clients_.size();
}

void Quotas::fill_locked(Client& client) const {
  const TimePoint now = clock_->now();
  const double minutes = seconds(now - client.as_of) / kMinute;
  const ClientLimits& limits = *client.limits;
  client.requests = std::min(bucket_size(limits.requests_per_minute),
                             client.requests + minutes * limits.requests_per_minute);
  client.tokens =
      std::min(limits.tokens_per_minute, client.tokens + minutes * limits.tokens_per_minute);
  client.as_of = now;
}

void Quotas::forget_locked() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    Client& client = it->second;
    fill_locked(client);
    const ClientLimits& limits = *client.limits;
    const double most = limits.requests_per_minute;
    const bool full = (most == 0 || client.requests >= bucket_size(most)) &&
                      client.tokens >= limits.tokens_per_minute;
    it = client.open == 0 && client.parts == 0 && full ? clients_.erase(it) : std::next(it);
  }
  forget_at_ = std::max(kFewClients, 2 * clients_.size());
}

}  // namespace tandem
