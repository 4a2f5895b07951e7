// GET /metrics, /healthz and /readyz for scrapers and orchestrators.
//
// Whoever is slow, silent or fat holds up nobody: one thread polls all connections, a request has 8
// KiB and two seconds, an answer five more, and when all places are taken the connection that has
// been without a whole request for longest gives up its own. One request per connection. /metrics
// is made on a thread of its own, once for all who wait for it, and few may wait.
//
// start() and the destructor belong to one thread.
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
    std::function<std::string()> metrics;  // text exposition format; may take a while
    std::function<HttpResponse()> ready;   // quick: all connections wait for it
    std::function<HttpResponse()> alive;   // likewise
  };
  static constexpr size_t kMaxRequest = 8 << 10;
  static constexpr size_t kMaxConnections = 64;
  static constexpr size_t kMaxScrapes = 8;  // connections that wait for metrics, or read them

  // Binds `address` ("HOST:PORT", port 0: a free one) and serves at once.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> start(const std::string& address,
                                                             Handlers handlers);
  ~HttpEndpoint();  // stops

  const std::string& address() const { return listener_.address; }  // with the port that was bound

 private:
  struct Connection;

  HttpEndpoint(Listener listener, Handlers handlers);
  void run();
  void render();
  void take_connections();
  void make_room();
  void serve(Connection& connection);
  void read_request(Connection& connection);
  void answer(Connection& connection, absl::string_view request);
  void give_metrics();
  size_t scrapes() const;

  const Listener listener_;
  const Handlers handlers_;
  SocketAcceptor socket_acceptor_;
  WakeUp wake_;
  std::vector<std::unique_ptr<Connection>> connections_;  // oldest first; polling thread
  uint64_t asked_ = 0;                                    // for metrics so far; polling thread

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;    // asked_ as the renderer knows it
  uint64_t rendered_ ABSL_GUARDED_BY(mutex_) = 0;  // wanted_ when rendering of metrics_ began
  std::shared_ptr<const std::string> metrics_ ABSL_GUARDED_BY(mutex_);

  std::thread poller_, renderer_;  // last: they use the rest
};

// The path of a request's first lines, without its query, when it is a GET or HEAD.
// `status`: 0 while the head is not whole, 200, or the error that it deserves.
struct HttpRequest {
  int status = 0;
  bool head_only = false;
  absl::string_view path;  // in `bytes`
};
HttpRequest parse_http_request(absl::string_view bytes);

}  // namespace tandem
