#include "server/edge/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "engine/base/thread.h"

namespace tandem {
namespace {

constexpr int kPollInterval = 1000;      // milliseconds
constexpr int kMaxAcceptsPerPoll = 256;  // of one socket
constexpr auto kBetweenSweeps = std::chrono::milliseconds(10);

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// 0 if `fd` is not a socket.
uint64_t cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t length = sizeof(cookie);
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

// Unlike shutdown(), this also discards unread input: a peer may have sent megabytes of calls by
// the time the limit is noticed.
void drop(int fd) {
  sockaddr nowhere = {};
  nowhere.sa_family = AF_UNSPEC;
  if (connect(fd, &nowhere, sizeof(nowhere)) != 0) shutdown(fd, SHUT_RDWR);
}

void end_of_file(int fd) { shutdown(fd, SHUT_WR); }

void close_hard(Fd fd) {
  const linger now = {1, 0};  // a reset, which leaves nothing in the kernel
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  fd.reset();
}

}  // namespace

Acceptor::Acceptor(Listener listener, Bounds bounds, Duration unacknowledged_limit)
    : listener_(std::move(listener)), bounds_(bounds), user_timeout_(unacknowledged_limit) {}

void Acceptor::start(Handle handle) {
  handle_ = std::move(handle);
  last_poll_.store(now());
  thread_ = start_thread("accepting connections", [this] { run(); });
}

void Acceptor::stop() {
  if (thread_.joinable()) {
    stop_.wake();
    thread_.join();
  }
  listener_.sockets.clear();
}

Duration Acceptor::since_last_poll() const { return Duration(now() - last_poll_.load()); }

void Acceptor::run() {
  std::vector<pollfd> polled = {{stop_.fd(), POLLIN, 0}};
  for (const Fd& socket : listener_.sockets) polled.push_back({socket.get(), POLLIN, 0});
  for (;;) {
    poll(polled.data(), polled.size(), kPollInterval);
    last_poll_.store(now());
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) accept_from(polled[i].fd);
    }
    remove_closed();
  }
}

void Acceptor::accept_from(int socket) {
  const int milliseconds = static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(user_timeout_).count());
  for (int i = 0; i < kMaxAcceptsPerPoll; ++i) {
    Fd fd;
    const SocketAcceptor::Result result = socket_acceptor_.accept(socket, &fd);
    if (result == SocketAcceptor::Result::kNone) return;
    if (result == SocketAcceptor::Result::kDropped) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    sockaddr_storage name = {};
    socklen_t length = sizeof(name);
    if (getpeername(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) != 0) continue;
    std::string host = host_of(name);
    if (!has_capacity(host)) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      close_hard(std::move(fd));
      continue;
    }
    if (!host.empty()) {
      setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
    }
    {
      const MutexLock lock(&mutex_);
      open_.push_back({fd.get(), cookie_of(fd.get()), peer_of(name), std::move(host)});
      open_count_.store(open_.size(), std::memory_order_relaxed);
    }
    handle_(socket, fd.release());
  }
}

bool Acceptor::has_capacity(const std::string& host) {
  const auto count = [&] {
    const MutexLock lock(&mutex_);
    const auto of_host = static_cast<size_t>(std::count_if(
        open_.begin(), open_.end(), [&](const Open& open) { return open.host == host; }));
    return open_.size() < bounds_.connections && (host.empty() || of_host < bounds_.per_host);
  };
  if (count()) return true;
  remove_closed();
  return count();
}

void Acceptor::remove_closed() {
  const TimePoint at = std::chrono::steady_clock::now();
  if (at < swept_ + kBetweenSweeps)
    return;  // one sweep per connection would be too slow in a flood
  swept_ = at;
  const MutexLock lock(&mutex_);
  std::erase_if(open_, [](const Open& open) { return cookie_of(open.fd) != open.cookie; });
  open_count_.store(open_.size(), std::memory_order_relaxed);
}

// Works on a duplicate descriptor: the receiver may close its own meanwhile, and the number may be
// reused for another socket.
void Acceptor::end(const Open& open, void (*how)(int fd)) {
  const Fd fd(fcntl(open.fd, F_DUPFD_CLOEXEC, 0));
  if (fd.valid() && cookie_of(fd.get()) == open.cookie) how(fd.get());
}

void Acceptor::close_connection(const std::string& peer) {
  const MutexLock lock(&mutex_);
  for (const Open& open : open_) {
    if (open.peer == peer) end(open, drop);
  }
}

void Acceptor::close_idle(const std::function<bool(const std::string& peer)>& idle) {
  const MutexLock lock(&mutex_);
  for (const Open& open : open_) {
    if (!open.host.empty() && idle(open.peer)) end(open, end_of_file);
  }
}

}  // namespace tandem
