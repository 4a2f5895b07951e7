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

// Accepts connections. If no descriptor is left, it frees a reserved one to accept and close the
// connection, so that the backlog drains and the poll loop does not spin.
class SocketAcceptor {
 public:
  SocketAcceptor();

  enum class Result { kAccepted, kNone, kDropped };
  // Accepts the next waiting connection of `listener`; does not block. kDropped: there was one but
  // no descriptor for it.
  Result accept(int listener, Fd* out);

 private:
  Fd spare_;
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
