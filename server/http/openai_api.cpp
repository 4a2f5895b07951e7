#include "server/http/openai_api.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "server/edge/peer.h"
#include "server/edge/status_text.h"
#include "server/grpc/call_info.h"
#include "server/grpc/response_to_proto.h"
#include "server/http/openai_call.h"
#include "server/openai/answer.h"
#include "server/openai/error.h"

namespace tandem {
namespace {

constexpr size_t kMaxMessage = 4000;
constexpr char kModels[] = "/v1/models";

// Sends a response that another thread made.
class PostedResponse final : public HttpServer::Work {
 public:
  static void post(HttpServer& server, std::shared_ptr<HttpExchange> exchange, int status,
                   HttpHeaders headers, std::string body) {
    const std::shared_ptr<PostedResponse> response(
        new PostedResponse(std::move(exchange), status, std::move(headers), std::move(body)));
    response->self_ = response;
    server.post(response.get());
  }
  void work() override {
    const std::shared_ptr<PostedResponse> last = std::move(self_);
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
  std::shared_ptr<PostedResponse> self_;  // until it is sent
};

// "a%2Fb" -> "a/b". Other text is unchanged.
std::string unescaped(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view digits = text.substr(i + 1, 2);
    const bool escape = text[i] == '%' && digits.size() == 2 &&
                        std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit);
    if (!escape) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>(std::stoi(std::string(digits), nullptr, 16)));
    i += 2;
  }
  return out;
}

absl::StatusOr<std::string> models_answer(const ServerState& state, const std::string& path,
                                          int64_t created) {
  const Engine* const engine = state.engine.load();
  if (engine == nullptr) return not_ready();
  if (path != kModels) {
    const std::string name = unescaped(absl::StripPrefix(path, absl::StrCat(kModels, "/")));
    TANDEM_ASSIGN_OR_RETURN(const DeploymentInfo one, engine->deployment(name));
    return openai::model_json(model_to_proto(one), created);
  }
  std::vector<v1::Model> all;
  for (const DeploymentInfo& one : engine->deployments()) all.push_back(model_to_proto(one));
  return openai::models_json(all, created);
}

void refuse(HttpExchange& exchange, const absl::Status& status, int http_status,
            HttpHeaders headers = {}) {
  OpenAiError error = openai_error(status, "");
  for (auto& header : headers) error.headers.push_back(std::move(header));
  exchange.respond(http_status, error.headers, error.body);
}

// Any page in a browser on this machine may send other types, but not this one.
bool is_json_type(const std::string& type) {
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type.substr(0, type.find(';'))),
                                "application/json");
}

// Whether a Host header names this machine. Protects against DNS rebinding: a page's own host name
// may resolve to this machine, but a browser sends that name in Host.
bool is_local_name(absl::string_view host) {
  host = host.substr(0, host.rfind(']') == host.npos ? host.rfind(':') : host.rfind(']') + 1);
  const bool digits = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "[::1]" || (digits && absl::StartsWith(host, "127."));
}

HttpServer::Bounds bounds_of(const ServerConfig& config, size_t connections) {
  HttpServer::Bounds out;
  out.connections = connections;
  out.head_bytes = static_cast<size_t>(config.max_metadata_bytes);
  out.held_bytes = static_cast<size_t>(config.max_transport_bytes);
  // A request above one host's share would get 429 for ever.
  out.body_bytes = std::min(static_cast<size_t>(config.max_receive_bytes),
                            host_share(out.held_bytes) - out.head_bytes);
  out.head_time = config.handshake_timeout;
  out.idle_time = config.max_connection_idle;
  out.age = config.max_connection_age;
  return out;
}

}  // namespace

OpenAiError openai_error(const absl::Status& status, const std::string& request_id) {
  const absl::Status visible = client_status(status, request_id);
  OpenAiError out;
  out.status = openai::http_status(visible);
  out.headers = {{"Content-Type", "application/json"}};
  if (!request_id.empty()) out.headers.emplace_back("X-Request-Id", request_id);
  if (out.status == 429 || out.status == 503) {
    const int64_t wait = retry_after_ms(visible);
    out.headers.emplace_back("Retry-After",
                             absl::StrCat(std::max<int64_t>(1, (wait + 999) / 1000)));
    out.headers.emplace_back("Retry-After-Ms", absl::StrCat(wait));  // used by OpenAI's clients
  }
  if (out.status == 401) out.headers.emplace_back("WWW-Authenticate", "Bearer");
  const std::string message = bounded_text(
      absl::string_view(visible.message().data(), visible.message().size()), kMaxMessage);
  out.body = openai::error_json(visible, message);
  return out;
}

absl::StatusOr<std::unique_ptr<OpenAiApi>> OpenAiApi::start(const std::string& address,
                                                            Acceptor::Bounds bounds,
                                                            ServerState& state) {
  TANDEM_ASSIGN_OR_RETURN(Listener listener, listen_on("openai", address));
  return std::unique_ptr<OpenAiApi>(new OpenAiApi(std::move(listener), bounds, state));
}

// Accepts a few connections above the limit, to reject them with 429.
OpenAiApi::OpenAiApi(Listener listener, Acceptor::Bounds bounds, ServerState& state)
    : state_(state),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      http_(bounds_of(state.config, bounds.connections),
            {[this](const auto& exchange) { on_request(exchange); },
             [](int status) { return openai::error_json(status); }}),
      acceptor_(
          std::move(listener), {bounds.connections + 64, bounds.per_host},
          std::max<Duration>(state.config.keepalive_timeout, HttpServer::Bounds().stall_time)) {
  acceptor_.start([this](int, int fd) { http_.add_connection(fd); });
}

void OpenAiApi::on_request(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpMessage& message = exchange->message;
  const ServerConfig& config = state_.config;
  if (const std::string host = message.header("host");
      config.bearer_token_file.empty() && is_loopback(config.openai) && !is_local_name(host)) {
    return refuse(
        *exchange,
        with_reason(out_of_range("Host", quote_value(host),
                                 "localhost, 127.0.0.1 or [::1], because the server listens "
                                 "only locally and needs no token"),
                    "UNKNOWN_HOST"),
        403);
  }
  const bool chat = message.path == "/v1/chat/completions";
  const bool models =
      message.path == kModels || absl::StartsWith(message.path, absl::StrCat(kModels, "/"));
  if (!chat && !models && message.path != "/v1/completions") {
    return refuse(*exchange,
                  with_reason(absl::NotFoundError(absl::StrCat(
                                  quote_value(message.path),
                                  ": unknown; allowed: GET /v1/models, POST /v1/completions, "
                                  "POST /v1/chat/completions")),
                              "UNKNOWN_URL"),
                  404);
  }
  const char* const method = models ? "GET" : "POST";
  if (message.method != method) {
    return refuse(*exchange, out_of_range("method", quote_value(message.method), method), 405,
                  {{"Allow", method}});
  }
  if (models) return list_models(exchange);
  const std::string type = message.header("content-type");
  if (!is_json_type(type) || !message.header("content-encoding").empty()) {
    return refuse(*exchange,
                  out_of_range("Content-Type", quote_value(type),
                               "application/json, without a Content-Encoding"),
                  415);
  }
  OpenAiCall::start(chat ? openai::Kind::kChat : openai::Kind::kCompletion, state_, http_, worker_,
                    exchange);
}

void OpenAiApi::list_models(const std::shared_ptr<HttpExchange>& exchange) {
  CallInfo info =
      begin_call("openai/models", state_, exchange->peer, exchange->message.header("authorization"),
                 exchange->message.header("traceparent"));
  worker_.post([this, exchange, info = std::move(info)] {
    const auto made = info.authenticated.ok()
                          ? models_answer(state_, exchange->message.path, started_)
                          : absl::StatusOr<std::string>(info.authenticated);
    end_call(state_, info, made.status(), {});
    OpenAiError error;
    if (!made.ok()) error = openai_error(made.status(), info.request_id);
    PostedResponse::post(http_, exchange, made.ok() ? 200 : error.status,
                         made.ok() ? HttpHeaders{{"Content-Type", "application/json"},
                                                 {"X-Request-Id", info.request_id}}
                                   : error.headers,
                         made.ok() ? *made : error.body);
  });
}

Duration OpenAiApi::stalled_for() {
  const Duration longest =
      std::max({http_pulse_.pulse.overdue(), worker_pulse_.overdue(), acceptor_.since_last_poll()});
  http_pulse_.pulse.ask([this] { http_.post(&http_pulse_); });
  worker_pulse_.ask([this] { worker_.post([this] { worker_pulse_.beat(); }); });
  return longest;
}

void OpenAiApi::drain() {
  acceptor_.stop();
  http_.drain();
}

void OpenAiApi::close() {
  acceptor_.stop();
  http_.stop();
}

}  // namespace tandem
