// The OpenAI door: GET /v1/models, POST /v1/completions and /v1/chat/completions, over plain HTTP
// on a listener of its own. Requests become messages of our own API (openai/request.h) and go the
// way of gRPC's; docs/openai.md says what becomes of each field.
//
// start() and close() belong to one thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/async/worker.h"
#include "server/edge/acceptor.h"
#include "server/edge/http_server.h"
#include "server/edge/pulse.h"
#include "server/server_state.h"

namespace tandem {

class OpenAiApi {
 public:
  // Binds `address`. `state` outlives the door.
  static absl::StatusOr<std::unique_ptr<OpenAiApi>> start(const std::string& address,
                                                          Acceptor::Bounds bounds,
                                                          ServerState& state);
  ~OpenAiApi() { close(); }

  const std::string& address() const { return acceptor_.address(); }  // with the bound port
  const Acceptor& acceptor() const { return acceptor_; }

  // How long a thread of the door has not come to what it was asked last time; asks again. Zero:
  // all do. For one thread, before close().
  Duration look();

  // No connection is accepted, and those without calls are closed; the rest end with their answers.
  void drain();
  // Closes what is left, and waits for the calls to end.
  void close();

 private:
  OpenAiApi(Listener listener, Acceptor::Bounds bounds, ServerState& state);
  void on_request(const std::shared_ptr<HttpExchange>& exchange);
  void list_models(const std::shared_ptr<HttpExchange>& exchange);

  struct HttpPulse final : HttpServer::Work {
    void work() override { pulse.beat(); }
    Pulse pulse;
  };

  ServerState& state_;
  const int64_t started_;  // seconds since 1970
  HttpPulse http_pulse_;
  Pulse worker_pulse_;
  Worker worker_;  // reads requests, describes models
  HttpServer http_;
  Acceptor acceptor_;
};

// An error as a whole answer.
struct OpenAiError {
  int status;
  HttpHeaders headers;
  std::string body;
};
OpenAiError openai_error(const absl::Status& status, const std::string& request_id);

}  // namespace tandem
