// Accepts connections and passes them to gRPC or to the HTTP server. gRPC 1.51 stops accepting for
// good after it runs out of file descriptors (CVE-2023-4785), and limits connections neither in
// total nor per host.
//
// An accepted connection belongs to its receiver, which does not report its end. A connection
// counts as open while its descriptor still refers to the same socket, identified by SO_COOKIE (a
// cookie is never reused).
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
    size_t per_host;  // per address; IPv6: per /64 network. Ignored for unix sockets
  };
  // Takes ownership of `fd`.
  using Handle = std::function<void(int listener, int fd)>;

  Acceptor(Listener listener, Bounds bounds, Duration unacknowledged_limit);
  ~Acceptor() { stop(); }

  const std::string& address() const { return listener_.address; }
  // Connections that are already waiting are accepted. `handle` is called on the acceptor's thread.
  void start(Handle handle);
  // Closes the listening sockets, not the accepted connections. Call once.
  void stop();

  // Closes the connection of a peer, in gRPC's notation ("ipv4:10.0.0.7:41234"), and drops its
  // unread input. Thread-safe.
  void close_connection(const std::string& peer);
  // Sends an end of file to the peers for which `idle` is true, so that they close and reconnect
  // elsewhere. A call that such a peer sends meanwhile fails there with UNAVAILABLE. Skips unix
  // sockets, whose peers have no names. Thread-safe.
  void close_idle(const std::function<bool(const std::string& peer)>& idle);

  // Thread-safe:
  size_t open() const { return open_count_.load(std::memory_order_relaxed); }
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // Time since the last poll of the thread, which polls every second.
  Duration since_last_poll() const;

 private:
  struct Open {
    int fd;
    uint64_t cookie;
    std::string peer;  // in gRPC's notation; empty for unix sockets
    std::string host;
  };

  void run();
  void accept_from(int socket);
  bool has_capacity(const std::string& host);
  void remove_closed();
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
  std::atomic<int64_t> last_poll_{0};  // nanoseconds of the steady clock
  TimePoint swept_;                    // own thread
  std::thread thread_;
};

}  // namespace tandem
