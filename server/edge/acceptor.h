// Accepts connections in gRPC's place and hands them over. gRPC 1.51 stops accepting for ever when
// it once finds no file descriptor left (CVE-2023-4785), and bounds connections neither in all nor
// by peer; this does.
//
// What has been handed over belongs to gRPC, which says nothing when it closes it. So a connection
// counts as open as long as its descriptor still names the same socket, which the socket's cookie
// tells (SO_COOKIE: never used twice).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "server/edge/peer.h"
#include "server/edge/socket.h"

namespace tandem {

class Acceptor {
 public:
  struct Bounds {
    size_t connections;
    size_t per_host;  // from one address; IPv6: from one /64 network. Not for unix sockets
  };
  // Takes ownership of `fd`.
  using Handle = std::function<void(int listener, int fd)>;

  Acceptor(Listener listener, Bounds bounds, Duration unacknowledged_limit);
  ~Acceptor() { stop(); }

  const std::string& address() const { return listener_.address; }
  // What comes before is accepted now. `handle` is called on the acceptor's thread.
  void start(Handle handle);
  // Closes the listening sockets; what has been handed over stays. Once.
  void stop();

  // Ends the connection of a peer as gRPC names it ("ipv4:10.0.0.7:41234"), and drops what it has
  // sent and nobody has read yet. Thread-safe.
  void close_connection(const std::string& peer);
  // Sends an end of file to the peers of whom `idle` says that they have no call: they close, and
  // connect elsewhere. A call that they send meanwhile fails with UNAVAILABLE there. Not for unix
  // sockets, whose peers have no names. Thread-safe.
  void close_idle(const std::function<bool(const std::string& peer)>& idle);

  // Thread-safe:
  size_t open() const { return open_count_.load(std::memory_order_relaxed); }
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // How long ago the thread last came round; it does every second.
  Duration since_last_poll() const;

 private:
  struct Open {
    int fd;
    uint64_t cookie;
    std::string peer;  // as gRPC names it; empty for unix sockets
    std::string host;
  };

  void run();
  void take_from(int socket);
  bool has_room(const std::string& host);
  void forget_closed();
  static void end(const Open& open, void (*how)(int fd));

  Listener listener_;
  const Bounds bounds_;
  const Duration user_timeout_;
  Handle handle_;
  SocketAcceptor socket_acceptor_;
  WakeUp stop_;
  Mutex mutex_;
  std::vector<Open> open_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::atomic<size_t> open_count_{0};
  std::atomic<int64_t> refused_{0};
  std::atomic<int64_t> turn_{0};  // nanoseconds of the steady clock
  TimePoint swept_;               // own thread
  std::thread thread_;
};

}  // namespace tandem
