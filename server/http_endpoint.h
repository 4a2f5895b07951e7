// GET /metrics, /healthz and /readyz for scrapers and orchestrators.
//
// /healthz: 200 while the process lives, 503 when only a new start would help it. /readyz: 200
// between the end of the warm-up and the start of a drain while there is a model to serve, else
// 503. Small pool of threads, one request per connection. start() and stop() belong to one thread;
// handlers run on the pool.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace httplib {
class Server;
}

namespace tandem {

class HttpEndpoint {
 public:
  struct Handlers {
    std::function<std::string()> metrics;  // text exposition format
    std::function<bool()> ready;
    std::function<bool()> alive;
  };

  // Binds `address` ("HOST:PORT", port 0: a free one) and serves at once.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> start(const std::string& address,
                                                             const Handlers& handlers);
  ~HttpEndpoint();  // stops

  const std::string& address() const { return address_; }  // with the port that was bound

 private:
  HttpEndpoint();

  std::unique_ptr<httplib::Server> server_;
  std::string address_;
  std::atomic<bool> ended_{false};  // the thread has stopped listening, whyever
  std::thread thread_;
};

}  // namespace tandem
