// The OpenAI-compatible HTTP API: models, completions, chat completions, Responses, Anthropic's
// Messages, tokens, status pages and the playground, over HTTP or HTTPS on its own port. Requests
// are converted to tandem.v1 messages (openai/request.h) and then handled like those of gRPC.
// docs/http_api.md lists the endpoints.
//
// A request is decided on its head: host, path, method, content type and token. Bodies are parsed
// on a few threads, in turns by client. Endpoints without a body never wait for bodies.
//
// start() and close() are called on one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/async/worker.h"
#include "engine/base/clock.h"
#include "server/edge/acceptor.h"
#include "server/edge/client_turns.h"
#include "server/edge/http_endpoint.h"
#include "server/edge/http_server.h"
#include "server/edge/pulse.h"
#include "server/edge/tls_context.h"
#include "server/server_state.h"

namespace tandem {

// The pages that the metrics port has too. All but `metrics` must be fast.
struct StatusPages {
  std::function<HttpResponse()> alive, ready, gateway;
  std::function<std::string()> metrics;  // text exposition format
};

class OpenAiApi {
 public:
  // Binds `address`. `state` outlives this. `tls` null: plain HTTP.
  static absl::StatusOr<std::unique_ptr<OpenAiApi>> start(const std::string& address,
                                                          Acceptor::Bounds bounds,
                                                          ServerState& state, StatusPages pages,
                                                          std::shared_ptr<const TlsContext> tls);
  ~OpenAiApi() { close(); }

  const std::string& address() const { return acceptor_.address(); }  // with the bound port
  const Acceptor& acceptor() const { return acceptor_; }

  // The longest time that one of its threads has made no progress; zero: all do. Independent of how
  // many requests wait. Call regularly on one thread, before close().
  Duration stalled_for();

  // Stops accepting, closes idle connections, and closes the others after their responses. Requests
  // that wait to be parsed get UNAVAILABLE.
  void drain();
  // Closes all connections and waits for their calls to end.
  void close();

 private:
  OpenAiApi(Listener listener, Acceptor::Bounds bounds, ServerState& state, StatusPages pages,
            std::unique_ptr<HttpIo> io);

  // An endpoint.
  struct Route {
    absl::string_view path;
    bool prefix;         // also below the path: "/v1/models/NAME"
    const char* method;  // "GET"
    const char* call;    // its name in the log and in metrics
    bool json;           // has a body, of type application/json
    bool open;           // needs no token
    void (OpenAiApi::*serve)(const std::shared_ptr<HttpExchange>&);
  };
  static const Route kRoutes[];
  static const Route* route_of(absl::string_view path);
  bool serves(const Route& route, absl::string_view path) const;
  std::optional<HttpReply> unknown_url(absl::string_view path) const;

  HttpAdmission on_head(const HttpMessage& head, const HttpPeer& peer);
  // The error that a head deserves. `route` is set if the path has one.
  std::optional<HttpReply> check_head(const HttpMessage& head, const Route** route) const;
  void on_request(const std::shared_ptr<HttpExchange>& exchange);
  void list_models(const std::shared_ptr<HttpExchange>& exchange);
  void complete(const std::shared_ptr<HttpExchange>& exchange);
  void chat(const std::shared_ptr<HttpExchange>& exchange);
  void respond(const std::shared_ptr<HttpExchange>& exchange);
  void send_message(const std::shared_ptr<HttpExchange>& exchange);
  void count_tokens(const std::shared_ptr<HttpExchange>& exchange);
  void embed(const std::shared_ptr<HttpExchange>& exchange);
  void rerank(const std::shared_ptr<HttpExchange>& exchange);
  void tokenize(const std::shared_ptr<HttpExchange>& exchange);
  void detokenize(const std::shared_ptr<HttpExchange>& exchange);
  void load_adapter(const std::shared_ptr<HttpExchange>& exchange);
  void unload_adapter(const std::shared_ptr<HttpExchange>& exchange);
  void show_health(const std::shared_ptr<HttpExchange>& exchange);
  void show_alive(const std::shared_ptr<HttpExchange>& exchange);
  void show_ready(const std::shared_ptr<HttpExchange>& exchange);
  void show_version(const std::shared_ptr<HttpExchange>& exchange);
  void show_metrics(const std::shared_ptr<HttpExchange>& exchange);
  void show_gateway(const std::shared_ptr<HttpExchange>& exchange);
  void show_playground(const std::shared_ptr<HttpExchange>& exchange);

  struct HttpPulse final : HttpServer::Work {
    void work() override { pulse.beat(); }
    Pulse pulse;
  };

  ServerState& state_;
  const StatusPages pages_;
  const int64_t started_;  // seconds since 1970
  HttpPulse http_pulse_;
  Pulse worker_pulse_;
  const SteadyClock clock_;
  Worker worker_{1, {}, "short HTTP requests"};  // without a body
  ClientTurns turns_;                            // bodies
  HttpServer http_;
  Acceptor acceptor_;
};

// An error as a complete response.
struct OpenAiError {
  int status;
  HttpHeaders headers;
  std::string body;
};
OpenAiError openai_error(const absl::Status& status, const std::string& request_id);

}  // namespace tandem
