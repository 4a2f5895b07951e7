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
    if (by_peer_.size() >= kMaxRemembered) {
      absl::erase_if(by_peer_, [](const auto& entry) { return entry.second.open == 0; });
    }
    int64_t& of_peer = by_peer_[peer].open;
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
    if (of_peer == 0 && by_peer_[peer].abandoned == 0) by_peer_.erase(peer);
    if (of_host == 0) by_host_.erase(host);
  }
  if (close) close_(peer);
  return with_reason(absl::ResourceExhaustedError(why), "TOO_MANY_CALLS");
}

void OpenCalls::leave(const std::string& peer, bool abandoned) {
  const std::string host = host_of(peer);
  bool close = false;
  {
    const MutexLock lock(&mutex_);
    --open_;
    if (const auto it = by_host_.find(host); --it->second == 0) by_host_.erase(it);
    const auto it = by_peer_.find(peer);
    --it->second.open;
    close = too_many_abandoned(&it->second, abandoned);
    closed_ += close ? 1 : 0;
    if (it->second.open == 0 && it->second.abandoned == 0) by_peer_.erase(it);
  }
  if (close) close_(peer);
}

bool OpenCalls::too_many_abandoned(Peer* peer, bool abandoned) {
  ++peer->ended;
  peer->abandoned += abandoned ? 1 : 0;
  const bool many = peer->abandoned >= kMaxAbandoned && 2 * peer->abandoned > peer->ended;
  if (many) {
    peer->ended = peer->abandoned = 0;
  } else if (peer->ended >= 2 * kMaxAbandoned) {  // the recent ones count
    peer->ended /= 2;
    peer->abandoned /= 2;
  }
  return many;
}

int64_t OpenCalls::open() const {
  const MutexLock lock(&mutex_);
  return open_;
}

bool OpenCalls::has_any(const std::string& peer) const {
  const MutexLock lock(&mutex_);
  const auto it = by_peer_.find(peer);
  return it != by_peer_.end() && it->second.open > 0;
}

int64_t OpenCalls::refused() const {
  const MutexLock lock(&mutex_);
  return refused_;
}

int64_t OpenCalls::closed() const {
  const MutexLock lock(&mutex_);
  return closed_;
}

size_t OpenCalls::remembered() const {
  const MutexLock lock(&mutex_);
  return by_peer_.size();
}

}  // namespace tandem
