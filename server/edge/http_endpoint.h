// GET /metrics, /metrics/gateway, /healthz and /readyz for scrapers and orchestrators.
//
// A slow client does not delay others. One thread polls all connections. A request has 8 KiB and 2
// s, a response 5 s more. At the connection limit, a connection of the host that has the most is
// closed: its oldest without a complete request. So one host cannot close the probes of another.
// One request per connection. Probes are answered also if the process has no descriptor left.
// /metrics is rendered on a second thread, once for all waiting
// scrapes, whose number is limited.
//
// start() and the destructor are called on one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "server/edge/socket.h"

namespace tandem {

struct HttpResponse {
  int status = 200;
  std::string body;
};

class HttpEndpoint {
 public:
  struct Handlers {
    std::function<std::string()> metrics;   // text exposition format; may be slow
    std::function<HttpResponse()> ready;    // must be fast: it delays all connections
    std::function<HttpResponse()> alive;    // the same
    std::function<HttpResponse()> gateway;  // the same; gauges in text exposition format
    // Requests whose Host names another machine get 403. For a server that only this machine can
    // reach: a page in a browser can make its own host name resolve to this machine.
    bool local_only = false;
  };
  static constexpr size_t kMaxRequest = 8 << 10;
  static constexpr size_t kMaxConnections = 64;
  static constexpr size_t kMaxScrapes = 8;  // connections that wait for or receive metrics
  static constexpr size_t kReserved = 8;    // connections served if no descriptor is left

  // Binds `address` ("HOST:PORT"; port 0: any free port) and starts to serve.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> start(const std::string& address,
                                                             Handlers handlers);
  ~HttpEndpoint();

  const std::string& address() const { return listener_.address; }  // with the bound port

 private:
  struct Connection;

  HttpEndpoint(Listener listener, Handlers handlers);
  void stop();
  void run();
  void render();
  void take_connections();
  void evict();
  void close_ended();
  void serve(Connection& connection);
  void read_request(Connection& connection);
  void respond(Connection& connection, absl::string_view request);
  void send_metrics();
  size_t scrapes() const;

  const Listener listener_;
  const Handlers handlers_;
  SocketAcceptor socket_acceptor_{kReserved};
  WakeUp wake_;
  std::vector<std::unique_ptr<Connection>> connections_;  // oldest first; polling thread
  uint64_t asked_ = 0;                                    // scrapes so far; polling thread

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;    // the renderer's copy of asked_
  uint64_t rendered_ ABSL_GUARDED_BY(mutex_) = 0;  // wanted_ when the rendering of metrics_ began
  std::shared_ptr<const std::string> metrics_ ABSL_GUARDED_BY(mutex_);

  std::thread poller_, renderer_;  // last: they use the other members
};

// The parsed head of a request.
// `status`: 0 while the head is incomplete, 200 for a GET or HEAD, else the error to return.
struct HttpRequest {
  int status = 0;
  bool head_only = false;
  absl::string_view path;  // without the query; refers to `bytes`, as does `host`
  absl::string_view host;  // of the header; empty: there is none
};
HttpRequest parse_http_request(absl::string_view bytes);

}  // namespace tandem
