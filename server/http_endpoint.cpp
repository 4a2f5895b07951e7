#include "server/http_endpoint.h"

#include <httplib.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

constexpr int kThreads = 4;
constexpr int kTimeoutSeconds = 5;
constexpr size_t kMaxBody = 4 << 10;  // of a request; none of ours has one

}  // namespace

HttpEndpoint::HttpEndpoint() : server_(std::make_unique<httplib::Server>()) {}

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::start(const std::string& address,
                                                                  const Handlers& handlers) {
  std::unique_ptr<HttpEndpoint> endpoint(new HttpEndpoint());
  httplib::Server& server = *endpoint->server_;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // A kept connection would hold a thread of the pool while it is idle.
  server.set_keep_alive_max_count(1);
  server.set_read_timeout(kTimeoutSeconds);
  server.set_write_timeout(kTimeoutSeconds);
  server.set_payload_max_length(kMaxBody);
  // Without SO_REUSEPORT, which the library would set: a taken port must be an error.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });

  server.Get("/metrics", [metrics = handlers.metrics](const auto&, httplib::Response& response) {
    response.set_content(metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz", [alive = handlers.alive](const auto&, httplib::Response& response) {
    const bool yes = alive();
    response.status = yes ? 200 : 503;
    response.set_content(yes ? "ok\n" : "every model's device is lost\n", "text/plain");
  });
  server.Get("/readyz", [ready = handlers.ready](const auto&, httplib::Response& response) {
    const bool yes = ready();
    response.status = yes ? 200 : 503;
    response.set_content(yes ? "ready\n" : "not ready\n", "text/plain");
  });

  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  absl::string_view bare = host;  // [::1] is written without its brackets in a socket address
  if (absl::ConsumePrefix(&bare, "[")) absl::ConsumeSuffix(&bare, "]");
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("http: ", address, "; allowed: HOST:PORT"));
  }
  if (port == 0) {
    port = server.bind_to_any_port(std::string(bare));
    if (port <= 0) port = 0;
  } else if (!server.bind_to_port(std::string(bare), port)) {
    port = 0;
  }
  if (port == 0) {
    return absl::UnavailableError(
        absl::StrCat("http: cannot listen on ", address, "; is the port taken?"));
  }
  endpoint->address_ = absl::StrCat(host, ":", port);
  endpoint->thread_ = std::thread([&server, &ended = endpoint->ended_] {
    server.listen_after_bind();
    ended.store(true);
  });
  return endpoint;
}

HttpEndpoint::~HttpEndpoint() {
  if (!thread_.joinable()) return;
  // stop() does nothing before the thread has begun to listen.
  while (!server_->is_running() && !ended_.load()) std::this_thread::yield();
  server_->stop();
  thread_.join();
}

}  // namespace tandem
