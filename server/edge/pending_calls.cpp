#include "server/edge/pending_calls.h"

namespace tandem {

bool PendingCalls::admit(const void* connection) {
  const MutexLock lock(&mutex_);
  expire();
  Counts& calls = by_connection_[connection];
  if (calls.all() < bounds_.per_connection &&
      (pending_ < bounds_.total ||
       (pending_ < bounds_.max_total() && calls.all() < bounds_.reserve_threshold))) {
    ++calls.since;
    ++pending_;
    return true;
  }
  ++refused_;
  if (calls.all() == 0) by_connection_.erase(connection);
  return false;
}

void PendingCalls::received(const void* connection) {
  const MutexLock lock(&mutex_);
  const auto it = by_connection_.find(connection);
  if (it == by_connection_.end()) return;
  --pending_;
  --(it->second.before > 0 ? it->second.before : it->second.since);
  if (it->second.all() == 0) by_connection_.erase(it);
}

void PendingCalls::expire() const {
  const TimePoint now = clock_->now();
  if (now < next_expiry_) return;
  const bool both = now - next_expiry_ >= kExpiry;  // nothing was admitted for two periods
  next_expiry_ = now + kExpiry;
  for (auto it = by_connection_.begin(); it != by_connection_.end();) {
    Counts& calls = it->second;
    const int64_t gone = both ? calls.all() : calls.before;
    pending_ -= gone;
    expired_ += gone;
    calls = {.before = calls.all() - gone, .since = 0};
    const auto at = it++;
    if (at->second.all() == 0) by_connection_.erase(at);
  }
}

int64_t PendingCalls::pending() const {
  const MutexLock lock(&mutex_);
  expire();
  return pending_;
}

int64_t PendingCalls::refused() const {
  const MutexLock lock(&mutex_);
  return refused_;
}

int64_t PendingCalls::expired() const {
  const MutexLock lock(&mutex_);
  expire();
  return expired_;
}

}  // namespace tandem
