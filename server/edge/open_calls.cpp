#include "server/edge/open_calls.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {

absl::Status OpenCalls::enter(const std::string& peer) {
  bool close = false;
  {
    const std::lock_guard lock(mutex_);
    int64_t& of_peer = by_peer_[peer];
    close = of_peer >= 2 * bounds_.per_connection;
    if (!close && open_ < bounds_.total) {
      ++of_peer;
      ++open_;
      return absl::OkStatus();
    }
    ++refused_;
    if (of_peer == 0) by_peer_.erase(peer);
  }
  if (close) close_(peer);
  return with_reason(
      absl::ResourceExhaustedError(
          close ? absl::StrCat("more calls on one connection than it may have open: ",
                               bounds_.per_connection, " (server.max_concurrent_streams)")
                : absl::StrCat("too many calls are open: ", bounds_.total,
                               " (server.max_open_calls); try again later")),
      "TOO_MANY_CALLS");
}

void OpenCalls::leave(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  --open_;
  const auto it = by_peer_.find(peer);
  if (--it->second == 0) by_peer_.erase(it);
}

int64_t OpenCalls::open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

bool OpenCalls::any_of(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  return by_peer_.contains(peer);
}

int64_t OpenCalls::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

}  // namespace tandem
