// Listening sockets, and an accept that survives running out of file descriptors.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& from) noexcept : fd_(from.release()) {}
  Fd& operator=(Fd&& from) noexcept {
    if (this != &from) {
      reset();
      fd_ = from.release();
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

struct Listener {
  std::vector<Fd> sockets;  // one for each address of the host name
  std::string address;      // as requested, with the bound port
};

// Binds "HOST:PORT" (port 0: any free port; a wildcard host: IPv6 and IPv4) or "unix:PATH"
// (replaces an existing socket). The sockets are non-blocking. Errors name `field`.
absl::StatusOr<Listener> listen_on(const std::string& field, const std::string& address);

// Accepts connections. It holds descriptors in reserve, for when the process has no other. The last
// of them serves to accept and close connections, so that the backlog drains and the poll loop does
// not spin. All acceptors of the process share a lock, so none takes a descriptor that another
// frees.
class SocketAcceptor {
 public:
  // `connections`: the number of connections that the reserve accepts before others are closed.
  explicit SocketAcceptor(size_t connections = 0);

  enum class Result { kAccepted, kNone, kDropped };
  // Accepts the next waiting connection of `listener`; does not block, but may take 10 ms if there
  // is not even a reserve. kDropped: there was a connection but no descriptor for it.
  Result accept(int listener, Fd* out);
  // Closes a connection. The reserve is refilled before another acceptor takes the descriptor.
  void close(Fd connection);

 private:
  Result accept_locked(int listener, Fd* out);
  void refill();

  const size_t size_;
  std::vector<Fd> reserve_;
};

// Wakes a polling thread. The constructor throws std::system_error if no descriptor is left.
class WakeUp {
 public:
  WakeUp();
  void wake();   // from any thread
  void clear();  // on the polling thread
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

}  // namespace tandem
