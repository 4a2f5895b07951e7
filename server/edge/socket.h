// Listening sockets, and accepting from them in a way that running out of descriptors does not end.
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
  std::vector<Fd> sockets;  // one for each address that the name stands for
  std::string address;      // as asked for, with the port that was bound
};

// Binds "HOST:PORT" (port 0: a free one; a wildcard host: IPv6 and IPv4) or "unix:PATH" (a socket
// that lies there is replaced). The sockets do not block. `field` is what errors name.
absl::StatusOr<Listener> listen_on(const std::string& field, const std::string& address);

// Takes connections. One that finds no descriptor left is closed at once, with the help of a
// descriptor kept for that, so that the backlog never stands and the poll loop never spins.
class SocketAcceptor {
 public:
  SocketAcceptor();

  enum class Result { kTaken, kNone, kDropped };
  // The next connection that waits at `listener`, not blocking. kDropped: there was one, and no
  // descriptor for it.
  Result take(int listener, Fd* out);

 private:
  Fd spare_;
};

// Wakes a thread that polls.
class WakeUp {
 public:
  WakeUp();
  void wake();   // from any thread
  void clear();  // on the thread that polls
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

}  // namespace tandem
