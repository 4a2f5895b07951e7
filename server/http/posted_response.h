// Sends a complete response that another thread made.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "server/edge/http_server.h"

namespace tandem {

class PostedResponse final : public HttpServer::Work {
 public:
  // Removes the listener of the exchange, which `keep` may own. Thread-safe. `server` outlives the
  // exchange.
  static void post(HttpServer& server, std::shared_ptr<HttpExchange> exchange, int status,
                   HttpHeaders headers, std::string body, std::shared_ptr<void> keep = nullptr) {
    const std::shared_ptr<PostedResponse> response(
        new PostedResponse(std::move(exchange), status, std::move(headers), std::move(body)));
    response->keep_ = std::move(keep);
    response->self_ = response;
    server.post(response.get());
  }
  void work() override {
    const std::shared_ptr<PostedResponse> last = std::move(self_);
    exchange_->listen(nullptr);
    exchange_->respond(status_, headers_, body_);
  }

 private:
  PostedResponse(std::shared_ptr<HttpExchange> exchange, int status, HttpHeaders headers,
                 std::string body)
      : exchange_(std::move(exchange)),
        status_(status),
        headers_(std::move(headers)),
        body_(std::move(body)) {}

  const std::shared_ptr<HttpExchange> exchange_;
  const int status_;
  const HttpHeaders headers_;
  const std::string body_;
  std::shared_ptr<void> keep_;
  std::shared_ptr<PostedResponse> self_;  // until it is sent
};

}  // namespace tandem
