#include "server/edge/open_calls.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/edge/peer.h"

namespace tandem {

absl::Status OpenCalls::enter(const std::string& peer) {
  const std::string host = host_of(peer);
  const int64_t per_host = host_share(bounds_.total);
  std::string why;
  bool close = false;
  {
    const MutexLock lock(&mutex_);
    int64_t& of_peer = by_peer_[peer];
    int64_t& of_host = by_host_[host];
    if (of_peer >= 2 * bounds_.per_connection) {
      close = true;
      why = absl::StrCat("too many open calls on one connection: limit ", bounds_.per_connection,
                         " (server.max_concurrent_streams)");
    } else if (open_ >= bounds_.total) {
      why = absl::StrCat("too many open calls: limit ", bounds_.total,
                         " (server.max_open_calls); try again later");
    } else if (!host.empty() && of_host >= per_host) {
      why = absl::StrCat("too many open calls of one host: limit ", per_host,
                         " (three quarters of server.max_open_calls); try again later");
    } else {
      ++of_peer;
      ++of_host;
      ++open_;
      return absl::OkStatus();
    }
    ++refused_;
    if (of_peer == 0) by_peer_.erase(peer);
    if (of_host == 0) by_host_.erase(host);
  }
  if (close) close_(peer);
  return with_reason(absl::ResourceExhaustedError(why), "TOO_MANY_CALLS");
}

void OpenCalls::leave(const std::string& peer) {
  const std::string host = host_of(peer);
  const MutexLock lock(&mutex_);
  --open_;
  if (const auto it = by_peer_.find(peer); --it->second == 0) by_peer_.erase(it);
  if (const auto it = by_host_.find(host); --it->second == 0) by_host_.erase(it);
}

int64_t OpenCalls::open() const {
  const MutexLock lock(&mutex_);
  return open_;
}

bool OpenCalls::has_any(const std::string& peer) const {
  const MutexLock lock(&mutex_);
  return by_peer_.contains(peer);
}

int64_t OpenCalls::refused() const {
  const MutexLock lock(&mutex_);
  return refused_;
}

}  // namespace tandem
