#include "server/edge/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/mutex.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr int kBacklog = 1024;

absl::Status cannot(const std::string& field, const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat(field, ": cannot listen on ", address, ": ", why));
}

std::string last_error() { return std::generic_category().message(errno); }

// Bound and listening, or invalid with errno.
Fd bound(const sockaddr* address, socklen_t length) {
  const int family = address->sa_family;
  Fd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  const int yes = 1;
  const int no = 0;
  if (family != AF_UNIX) {
    // No SO_REUSEPORT: a second server on the port would silently get half of the calls.
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes,
               sizeof(yes));  // accepted sockets inherit it
  }
  if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (bind(fd.get(), address, length) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

absl::StatusOr<Listener> listen_on_path(const std::string& field, const std::string& address) {
  const std::string path = address.substr(5);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return cannot(field, address, absl::StrCat("longer than ", sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  struct stat what = {};
  if (stat(path.c_str(), &what) == 0 && S_ISSOCK(what.st_mode)) unlink(path.c_str());
  Listener out;
  out.address = address;
  out.sockets.push_back(bound(reinterpret_cast<const sockaddr*>(&name), sizeof(name)));
  if (!out.sockets[0].valid()) return cannot(field, address, last_error());
  return out;
}

// 0, with errno, if it cannot be read.
int port_of(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return 0;
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

void set_port(sockaddr* address, int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = number;
  }
}

// Held by acceptors while they take or free descriptors.
Mutex& accepting() {
  static Mutex mutex;
  return mutex;
}

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// All IPv4 and IPv6 addresses of this machine.
bool is_wildcard(absl::string_view host) { return host == "0.0.0.0" || host == "::"; }

absl::StatusOr<Listener> listen_everywhere(const std::string& field, const std::string& host,
                                           int port) {
  sockaddr_in6 both = {};
  both.sin6_family = AF_INET6;
  both.sin6_port = htons(static_cast<uint16_t>(port));
  Fd fd = bound(reinterpret_cast<const sockaddr*>(&both), sizeof(both));
  if (!fd.valid() && errno == EAFNOSUPPORT) {  // a kernel without IPv6
    sockaddr_in only = {};
    only.sin_family = AF_INET;
    only.sin_port = both.sin6_port;
    fd = bound(reinterpret_cast<const sockaddr*>(&only), sizeof(only));
  }
  if (!fd.valid()) return cannot(field, absl::StrCat(host, ":", port), last_error());
  Listener out;
  const int bound_port = port_of(fd.get());
  if (bound_port == 0) return cannot(field, absl::StrCat(host, ":", port), last_error());
  out.address = absl::StrCat(host, ":", bound_port);
  out.sockets.push_back(std::move(fd));
  return out;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<Listener> listen_on(const std::string& field, const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return listen_on_path(field, address);
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return out_of_range(field, address, "HOST:PORT");
  }
  const std::string host = address.substr(0, colon);
  absl::string_view bare = host;  // an IPv6 host is bracketed, a socket address is not
  if (absl::ConsumePrefix(&bare, "[")) absl::ConsumeSuffix(&bare, "]");
  if (is_wildcard(bare)) return listen_everywhere(field, host, port);

  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(std::string(bare).c_str(), nullptr, &hints, &found);
  if (failed != 0) return cannot(field, address, gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  Listener out;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    set_port(a->ai_addr, port);
    Fd fd = bound(a->ai_addr, a->ai_addrlen);
    if (!fd.valid()) {
      // The machine may lack the address family.
      if (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL) continue;
      return cannot(field, absl::StrCat(host, ":", port), last_error());
    }
    if (port == 0) port = port_of(fd.get());
    if (port == 0) return cannot(field, address, last_error());
    out.sockets.push_back(std::move(fd));
  }
  if (out.sockets.empty()) return cannot(field, address, "no such address on this machine");
  out.address = absl::StrCat(host, ":", port);
  return out;
}

SocketAcceptor::SocketAcceptor(size_t connections) : size_(connections + 1) {
  const MutexLock lock(&accepting());
  refill();
}

SocketAcceptor::Result SocketAcceptor::accept(int listener, Fd* out) {
  Result result;
  int error = 0;
  {
    const MutexLock lock(&accepting());
    refill();
    result = accept_locked(listener, out);
    error = errno;
    if (result != Result::kAccepted) refill();
  }
  // Polling would report the same connection at once, in a busy loop.
  if (result == Result::kNone && is_shortage(error)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return result;
}

// kNone with errno.
SocketAcceptor::Result SocketAcceptor::accept_locked(int listener, Fd* out) {
  for (;;) {
    *out = Fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (out->valid()) break;
    // The connection ended before it was accepted; there may be more.
    if (errno == ECONNABORTED || errno == EINTR || errno == EPROTO) return Result::kDropped;
    if ((errno != EMFILE && errno != ENFILE) || reserve_.empty()) return Result::kNone;
    reserve_.pop_back();
  }
  if (!reserve_.empty()) return Result::kAccepted;
  out->reset();
  return Result::kDropped;
}

void SocketAcceptor::close(Fd connection) {
  const MutexLock lock(&accepting());
  connection.reset();
  refill();
}

void SocketAcceptor::refill() {
  while (reserve_.size() < size_) {
    Fd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return;
    reserve_.push_back(std::move(fd));
  }
}

WakeUp::WakeUp() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!fd_.valid()) throw std::system_error(errno, std::generic_category(), "cannot make an event");
}

void WakeUp::wake() {
  const uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof(one));  // a full counter means that it is awake
}

void WakeUp::clear() {
  uint64_t count = 0;
  (void)!read(fd_.get(), &count, sizeof(count));
}

}  // namespace tandem
