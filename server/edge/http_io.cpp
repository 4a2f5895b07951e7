#include "server/edge/http_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "server/edge/peer.h"
#include "server/edge/socket.h"

namespace tandem {
namespace {

constexpr size_t kMaxEvents = 256;

uint32_t to_epoll(uint32_t events) {
  uint32_t out = 0;
  if ((events & HttpIo::kInput) != 0) out |= EPOLLIN;
  if ((events & HttpIo::kOutput) != 0) out |= EPOLLOUT;
  if ((events & HttpIo::kPeerClosed) != 0) out |= EPOLLRDHUP;
  return out;
}

uint32_t from_epoll(uint32_t events) {
  uint32_t out = 0;
  if ((events & EPOLLIN) != 0) out |= HttpIo::kInput;
  if ((events & EPOLLOUT) != 0) out |= HttpIo::kOutput;
  if ((events & EPOLLRDHUP) != 0) out |= HttpIo::kPeerClosed;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) out |= HttpIo::kFailed;
  return out;
}

class SystemHttpIo final : public HttpIo {
 public:
  SystemHttpIo() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event own = {EPOLLIN, {}};  // data.ptr stays null
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.fd(), &own) != 0) {
      throw std::system_error(errno, std::generic_category(), "cannot wait for HTTP connections");
    }
  }

  TimePoint now() const override { return std::chrono::steady_clock::now(); }

  std::string peer(int socket) const override {
    sockaddr_storage name = {};
    socklen_t length = sizeof(name);
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0) return "";
    const std::string peer = peer_of(name);
    return peer.empty() ? "unix:" : peer;
  }

  bool add(int socket, uint32_t events, void* tag) override {
    // Unsent bytes wait in the server, where they are counted, and not in the kernel.
    const int unsent = 128 << 10;
    setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    epoll_event event = {to_epoll(events), {.ptr = tag}};
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0;
  }

  bool watch(int socket, uint32_t events, void* tag) override {
    epoll_event event = {to_epoll(events), {.ptr = tag}};
    return epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event) == 0;
  }

  ssize_t receive(int socket, char* to, size_t size) override {
    const ssize_t n = recv(socket, to, size, MSG_DONTWAIT);
    return n >= 0 ? n : failure();
  }

  ssize_t send(int socket, absl::string_view bytes) override {
    const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n >= 0 ? n : failure();
  }

  void end_output(int socket) override { shutdown(socket, SHUT_WR); }
  void close(int socket) override { ::close(socket); }

  void wait(Duration limit, std::vector<Event>* events) override {
    std::array<epoll_event, kMaxEvents> found;
    const int milliseconds =
        limit < Duration::zero()
            ? -1
            : static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count());
    const int n = epoll_wait(epoll_.get(), found.data(), kMaxEvents, milliseconds);
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = found[static_cast<size_t>(i)];
      if (event.data.ptr == nullptr) {
        wake_.clear();
      } else {
        events->push_back({event.data.ptr, from_epoll(event.events)});
      }
    }
  }

  void wake() override { wake_.wake(); }

 private:
  static ssize_t failure() { return errno == EAGAIN || errno == EINTR ? kLater : kBroken; }

  const Fd epoll_;
  WakeUp wake_;
};

}  // namespace

std::unique_ptr<HttpIo> system_http_io() { return std::make_unique<SystemHttpIo>(); }

}  // namespace tandem
