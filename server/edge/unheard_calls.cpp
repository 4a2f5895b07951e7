#include "server/edge/unheard_calls.h"

namespace tandem {

bool UnheardCalls::made(const void* connection) {
  const std::lock_guard lock(mutex_);
  turn();
  Made& calls = by_connection_[connection];
  if (calls.all() < bounds_.per_connection &&
      (unheard_ < bounds_.total ||
       (unheard_ < bounds_.ceiling() && calls.all() < bounds_.its_own))) {
    ++calls.since;
    ++unheard_;
    return true;
  }
  ++refused_;
  if (calls.all() == 0) by_connection_.erase(connection);
  return false;
}

void UnheardCalls::heard(const void* connection) {
  const std::lock_guard lock(mutex_);
  const auto it = by_connection_.find(connection);
  if (it == by_connection_.end()) return;
  --unheard_;
  --(it->second.before > 0 ? it->second.before : it->second.since);
  if (it->second.all() == 0) by_connection_.erase(it);
}

void UnheardCalls::turn() const {
  const TimePoint now = clock_->now();
  if (now < turns_) return;
  const bool both = now - turns_ >= kGivenUp;  // nothing was made for two turns
  turns_ = now + kGivenUp;
  for (auto it = by_connection_.begin(); it != by_connection_.end();) {
    Made& calls = it->second;
    const int64_t gone = both ? calls.all() : calls.before;
    unheard_ -= gone;
    given_up_ += gone;
    calls = {.before = calls.all() - gone, .since = 0};
    const auto at = it++;
    if (at->second.all() == 0) by_connection_.erase(at);
  }
}

int64_t UnheardCalls::unheard() const {
  const std::lock_guard lock(mutex_);
  turn();
  return unheard_;
}

int64_t UnheardCalls::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

int64_t UnheardCalls::given_up() const {
  const std::lock_guard lock(mutex_);
  turn();
  return given_up_;
}

}  // namespace tandem
