#include "server/edge/unheard_calls.h"

namespace tandem {

bool UnheardCalls::made(const void* connection) {
  const std::lock_guard lock(mutex_);
  int64_t& of_connection = by_connection_[connection];
  if (of_connection < bounds_.per_connection && unheard_ < bounds_.total) {
    ++of_connection;
    ++unheard_;
    return true;
  }
  ++refused_;
  if (of_connection == 0) by_connection_.erase(connection);
  return false;
}

void UnheardCalls::heard(const void* connection) {
  const std::lock_guard lock(mutex_);
  const auto it = by_connection_.find(connection);
  if (it == by_connection_.end()) return;
  --unheard_;
  if (--it->second == 0) by_connection_.erase(it);
}

int64_t UnheardCalls::unheard() const {
  const std::lock_guard lock(mutex_);
  return unheard_;
}

int64_t UnheardCalls::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

}  // namespace tandem
