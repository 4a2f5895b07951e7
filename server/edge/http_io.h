// What HttpServer needs of the operating system: sockets, readiness and the clock. TLS is a layer
// on it (edge/tls_io.h). Tests replace it by a simulated network on virtual time.
//
// All functions except wake() belong to the server's thread. None blocks, except wait().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/base/clock.h"

namespace tandem {

class HttpIo {
 public:
  // Results of receive() and send() other than a number of bytes.
  static constexpr ssize_t kLater = -1;   // nothing can be read or written now
  static constexpr ssize_t kBroken = -2;  // the connection has failed

  // What to wait for. A failed connection is always reported.
  static constexpr uint32_t kInput = 1;
  static constexpr uint32_t kOutput = 2;
  static constexpr uint32_t kPeerClosed = 4;  // the peer sends no more
  static constexpr uint32_t kFailed = 8;      // only in events

  struct Event {
    void* tag;
    uint32_t what;
  };

  virtual ~HttpIo() = default;

  virtual TimePoint now() const = 0;
  // In gRPC's notation: "ipv4:10.0.0.7:41234", "unix:".
  virtual std::string peer(int socket) const = 0;
  // The name in the client's verified certificate; empty: it has none. Known once receive() has
  // returned bytes.
  virtual std::string certificate_name(int /*socket*/) const { return ""; }
  // Memory that a connection needs here at most, for the account. It may change.
  virtual size_t memory(int /*socket*/) const { return 0; }

  // `tag` is returned in events. False: the socket cannot be watched.
  virtual bool add(int socket, uint32_t events, void* tag) = 0;
  virtual bool watch(int socket, uint32_t events, void* tag) = 0;
  // Bytes read; 0: end of the input.
  virtual ssize_t receive(int socket, char* to, size_t size) = 0;
  virtual ssize_t send(int socket, absl::string_view bytes) = 0;
  virtual void end_output(int socket) = 0;  // the peer sees an end of file after all that was sent
  virtual void close(int socket) = 0;

  // Appends events. Waits for the first for at most `limit` (negative: forever), or until wake().
  virtual void wait(Duration limit, std::vector<Event>* events) = 0;
  virtual void wake() = 0;  // thread-safe
};

// Sockets of this machine, by epoll. Throws std::system_error if no descriptor is left.
std::unique_ptr<HttpIo> system_http_io();

}  // namespace tandem
