#include "server/http/openai_api.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/version.h"
#include "engine/host/requests/ingress.h"
#include "server/edge/peer.h"
#include "server/edge/static_files.h"
#include "server/edge/status_text.h"
#include "server/edge/tls_io.h"
#include "server/gateway_headers.h"
#include "server/grpc/call_info.h"
#include "server/grpc/response_to_proto.h"
#include "server/http/cors.h"
#include "server/http/credentials.h"
#include "server/http/openai_call.h"
#include "server/http/playground.h"
#include "server/http/posted_response.h"
#include "server/http/token_call.h"
#include "server/openai/answer.h"
#include "server/openai/error.h"
#include "server/openai/json_text.h"
#include "server/openai/translation.h"

namespace tandem {
namespace {

constexpr size_t kMaxMessage = 4000;
constexpr char kModels[] = "/v1/models";
constexpr char kMessagesPath[] = "/v1/messages";
constexpr char kMetricsPath[] = "/metrics";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr int kBodyThreads = 2;
// The memory of the largest body, parsed, fits into a client's share of the account this often.
constexpr int64_t kBodiesPerClient = 4;

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
    const v1::Model model = model_to_proto(one);
    const std::string adapter = engine->adapter(name, "");
    for (const v1::Adapter& a : model.adapters()) {
      if (a.name() == adapter) return openai::adapter_json(name, model, a, created);
    }
    return openai::model_json(model, created);
  }
  std::vector<v1::Model> all;
  for (const DeploymentInfo& one : engine->deployments()) all.push_back(model_to_proto(one));
  return openai::models_json(all, created);
}

HttpReply refusal_of(const absl::Status& status, int http_status, HttpHeaders headers = {}) {
  OpenAiError error = openai_error(status, "");
  for (auto& header : headers) error.headers.push_back(std::move(header));
  return {http_status, std::move(error.headers), std::move(error.body)};
}

// Any page in a browser on this machine may send other types, but not this one.
bool is_json_type(const std::string& type) {
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type.substr(0, type.find(';'))),
                                "application/json");
}

// An error in the form of the API that the path belongs to.
HttpAdmission shaped(const HttpMessage& head, HttpAdmission admission) {
  HttpReply& reply = *admission.refusal;
  if (absl::StartsWith(head.path, kMessagesPath) && !reply.body.empty()) {
    reply.body = openai::messages_error(reply.body, reply.status, "");
  }
  return admission;
}

HttpServer::Bounds bounds_of(const ServerConfig& config, const MemoryAccount& account,
                             size_t connections) {
  HttpServer::Bounds out;
  out.connections = connections;
  out.head_bytes = static_cast<size_t>(config.max_metadata_bytes);
  // A larger body would get 429 for ever.
  out.body_bytes = static_cast<size_t>(
      std::min<int64_t>(config.max_receive_bytes, account.client_limit() / kBodiesPerClient));
  out.head_time = config.handshake_timeout;
  out.idle_time = config.max_connection_idle;
  out.end_time = config.stalled_stream;
  out.age = config.max_connection_age;
  out.age_grace = config.max_connection_age_grace;
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
                                                            ServerState& state, StatusPages pages,
                                                            std::shared_ptr<const TlsContext> tls) {
  TANDEM_ASSIGN_OR_RETURN(Listener listener, listen_on("openai", address));
  std::unique_ptr<HttpIo> io = system_http_io();
  if (tls != nullptr) io = tls_io(std::move(io), std::move(tls));
  return std::unique_ptr<OpenAiApi>(
      new OpenAiApi(std::move(listener), bounds, state, std::move(pages), std::move(io)));
}

const OpenAiApi::Route OpenAiApi::kRoutes[] = {
    {kModels, /*prefix=*/true, "GET", "openai/models", /*json=*/false, /*open=*/false,
     &OpenAiApi::list_models},
    {"/v1/completions", false, "POST", "openai/completions", /*json=*/true, /*open=*/false,
     &OpenAiApi::complete},
    {"/v1/chat/completions", false, "POST", "openai/chat/completions", /*json=*/true,
     /*open=*/false, &OpenAiApi::chat},
    {"/v1/responses", false, "POST", "openai/responses", true, false, &OpenAiApi::respond},
    {kMessagesPath, false, "POST", "openai/messages", true, false, &OpenAiApi::send_message},
    {"/v1/messages/count_tokens", false, "POST", "openai/messages/count_tokens", true, false,
     &OpenAiApi::count_tokens},
    {"/v1/embeddings", false, "POST", "openai/embeddings", true, false, &OpenAiApi::embed},
    {"/v1/rerank", false, "POST", "openai/rerank", true, false, &OpenAiApi::rerank},
    {"/tokenize", false, "POST", "openai/tokenize", true, false, &OpenAiApi::tokenize},
    {"/detokenize", false, "POST", "openai/detokenize", true, false, &OpenAiApi::detokenize},
    {"/v1/load_lora_adapter", false, "POST", "openai/load_lora_adapter", true, false,
     &OpenAiApi::load_adapter},
    {"/v1/unload_lora_adapter", false, "POST", "openai/unload_lora_adapter", true, false,
     &OpenAiApi::unload_adapter},
    {"/health", false, "GET", "openai/health", false, /*open=*/true, &OpenAiApi::show_health},
    {"/healthz", false, "GET", "openai/healthz", false, /*open=*/true, &OpenAiApi::show_alive},
    {"/readyz", false, "GET", "openai/readyz", false, /*open=*/true, &OpenAiApi::show_ready},
    {"/version", false, "GET", "openai/version", false, /*open=*/true, &OpenAiApi::show_version},
    {kMetricsPath, false, "GET", "openai/metrics", false, false, &OpenAiApi::show_metrics},
    {"/metrics/gateway", false, "GET", "openai/metrics", false, false, &OpenAiApi::show_gateway},
    {"/", false, "GET", "openai/playground", false, /*open=*/true, &OpenAiApi::show_playground},
    {"/assets", true, "GET", "openai/playground", false, /*open=*/true,
     &OpenAiApi::show_playground},
};

const OpenAiApi::Route* OpenAiApi::route_of(absl::string_view path) {
  for (const Route& route : kRoutes) {
    absl::string_view rest = path;
    if (!absl::ConsumePrefix(&rest, route.path)) continue;
    if (rest.empty() || (route.prefix && rest.front() == '/')) return &route;
  }
  return nullptr;
}

// Accepts a few connections above the limit, to reject them with 429.
OpenAiApi::OpenAiApi(Listener listener, Acceptor::Bounds bounds, ServerState& state,
                     StatusPages pages, std::unique_ptr<HttpIo> io)
    : state_(state),
      pages_(std::move(pages)),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      turns_(kBodyThreads, &clock_),
      http_(bounds_of(state.config, *state.memory, bounds.connections),
            {[this](const auto& exchange) { on_request(exchange); },
             [](int status) { return openai::error_json(status); },
             [this](const HttpMessage& head, const HttpPeer& peer) { return on_head(head, peer); }},
            state.memory.get(), std::move(io)),
      acceptor_(
          std::move(listener), {bounds.connections + 64, bounds.per_host},
          std::max<Duration>(state.config.keepalive_timeout, HttpServer::Bounds().stall_time)) {
  http_.start();
  acceptor_.start([this](int, int fd) { http_.add_connection(fd); });
}

bool OpenAiApi::serves(const Route& route, absl::string_view path) const {
  if (route.serve == &OpenAiApi::show_playground) {
    return state_.config.playground && find_file(playground_files(), path) != nullptr;
  }
  if (route.serve == &OpenAiApi::load_adapter || route.serve == &OpenAiApi::unload_adapter) {
    return !state_.config.adapter_folder.empty();
  }
  return state_.config.openai_metrics || !absl::StartsWith(path, kMetricsPath);
}

std::optional<HttpReply> OpenAiApi::unknown_url(absl::string_view path) const {
  std::vector<std::string> all;
  for (const Route& known : kRoutes) {
    if (serves(known, known.path)) all.push_back(absl::StrCat(known.method, " ", known.path));
  }
  const char* const why = path != "/"                  ? "unknown"
                          : playground_files().empty() ? "this build has no playground"
                                                       : "the playground is switched off";
  return refusal_of(
      with_reason(absl::NotFoundError(absl::StrCat(quote_value(path), ": ", why,
                                                   "; allowed: ", absl::StrJoin(all, ", "))),
                  "UNKNOWN_URL"),
      404);
}

std::optional<HttpReply> OpenAiApi::check_head(const HttpMessage& head, const Route** route) const {
  const ServerConfig& config = state_.config;
  // With TLS, a browser compares the name with the certificate.
  if (const std::string host = head.header("host");
      config.bearer_token_file.empty() && !config.openai_tls && is_loopback(config.openai) &&
      !is_local_name(host)) {
    return refusal_of(
        with_reason(out_of_range("Host", quote_value(host),
                                 "localhost, 127.0.0.1 or [::1], because the server listens "
                                 "only locally and needs no token"),
                    "UNKNOWN_HOST"),
        403);
  }
  if (auto preflight = preflight_reply(config.cors_origins, head)) return preflight;
  *route = route_of(head.path);
  if (*route != nullptr && !serves(**route, head.path)) *route = nullptr;
  if (*route == nullptr) return unknown_url(head.path);
  const char* const method = (*route)->method;
  const bool playground = (*route)->serve == &OpenAiApi::show_playground;
  if (head.method != method && !(playground && head.method == "HEAD")) {
    return refusal_of(out_of_range("method", quote_value(head.method), method), 405,
                      {{"Allow", method}});
  }
  const std::string type = head.header("content-type");
  if ((*route)->json && (!is_json_type(type) || !head.header("content-encoding").empty())) {
    return refusal_of(out_of_range("Content-Type", quote_value(type),
                                   "application/json, without a Content-Encoding"),
                      415);
  }
  return std::nullopt;
}

// A request that is refused for its caller is a call: it is logged and counted.
HttpAdmission OpenAiApi::on_head(const HttpMessage& head, const HttpPeer& peer) {
  HttpAdmission out;
  const Route* route = nullptr;
  out.common = cors_headers(state_.config.cors_origins, head);
  out.refusal = check_head(head, &route);
  if (out.refusal.has_value()) return shaped(head, std::move(out));
  if (route->open) return out;
  auto client = state_.authenticator()->identify(credentials_of(head), peer);
  const bool drained = client.ok() && route->json && state_.draining.load();
  if (client.ok() && !drained) {
    const GatewayHeaders gateway =
        gateway_headers([&head](const char* name) { return head.header(name); });
    out.client = sender_of(state_.config, *std::move(client), gateway).client;
    return out;
  }
  const absl::Status status = drained ? shutting_down() : client.status();
  const CallInfo info = begin_call(route->call, state_, head, peer);
  end_call(state_, info, status, {});
  OpenAiError error = openai_error(status, info.request_id);
  out.refusal = {error.status, std::move(error.headers), std::move(error.body)};
  return shaped(head, std::move(out));
}

void OpenAiApi::on_request(const std::shared_ptr<HttpExchange>& exchange) {
  (this->*route_of(exchange->message.path)->serve)(exchange);
}

void OpenAiApi::complete(const std::shared_ptr<HttpExchange>& exchange) {
  OpenAiCall::start("openai/completions", openai::Kind::kCompletion, state_, http_, turns_,
                    exchange);
}

void OpenAiApi::chat(const std::shared_ptr<HttpExchange>& exchange) {
  OpenAiCall::start("openai/chat/completions", openai::Kind::kChat, state_, http_, turns_,
                    exchange);
}

void OpenAiApi::respond(const std::shared_ptr<HttpExchange>& exchange) {
  OpenAiCall::start("openai/responses", openai::Kind::kChat, state_, http_, turns_, exchange,
                    openai::responses_translation());
}

void OpenAiApi::send_message(const std::shared_ptr<HttpExchange>& exchange) {
  OpenAiCall::start("openai/messages", openai::Kind::kChat, state_, http_, turns_, exchange,
                    openai::messages_translation());
}

void OpenAiApi::count_tokens(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kCountTokens, state_, http_, turns_, exchange);
}

void OpenAiApi::embed(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kEmbeddings, state_, http_, turns_, exchange);
}

void OpenAiApi::rerank(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kRerank, state_, http_, turns_, exchange);
}

void OpenAiApi::tokenize(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kTokenize, state_, http_, turns_, exchange);
}

void OpenAiApi::detokenize(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kDetokenize, state_, http_, turns_, exchange);
}

void OpenAiApi::load_adapter(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kLoadAdapter, state_, http_, turns_, exchange);
}

void OpenAiApi::unload_adapter(const std::shared_ptr<HttpExchange>& exchange) {
  TokenCall::start(TokenCall::Kind::kUnloadAdapter, state_, http_, turns_, exchange);
}

// --- Status

// As llama.cpp's: 200 once requests are served.
void OpenAiApi::show_health(const std::shared_ptr<HttpExchange>& exchange) {
  if (state_.ready()) {
    return exchange->respond(200, {{"Content-Type", "application/json"}}, R"({"status":"ok"})");
  }
  const HttpReply reply = refusal_of(not_ready(), 503);
  exchange->respond(reply.status, reply.headers, reply.body);
}

void OpenAiApi::show_alive(const std::shared_ptr<HttpExchange>& exchange) {
  // The monitor exists before models are attached.
  const bool loading = state_.engine.load() == nullptr;
  const HttpResponse page = loading ? HttpResponse{200, "ok\n"} : pages_.alive();
  exchange->respond(page.status, {{"Content-Type", "text/plain"}}, page.body);
}

void OpenAiApi::show_ready(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpResponse page = pages_.ready();
  exchange->respond(page.status, {{"Content-Type", "text/plain"}}, page.body);
}

void OpenAiApi::show_version(const std::shared_ptr<HttpExchange>& exchange) {
  exchange->respond(200, {{"Content-Type", "application/json"}},
                    absl::StrCat("{\"version\":", openai::json_string(kVersion), "}"));
}

// The server's parts that metrics read are complete when models are attached.
void OpenAiApi::show_metrics(const std::shared_ptr<HttpExchange>& exchange) {
  if (state_.engine.load() == nullptr) {
    const HttpReply reply = refusal_of(not_ready(), 503);
    return exchange->respond(reply.status, reply.headers, reply.body);
  }
  worker_.post([this, exchange] {
    PostedResponse::post(http_, exchange, 200, {{"Content-Type", kMetricsType}}, pages_.metrics());
  });
}

void OpenAiApi::show_gateway(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpResponse page = pages_.gateway();
  exchange->respond(page.status, {{"Content-Type", kMetricsType}}, page.body);
}

// Its requests are no calls: they are neither logged nor counted.
void OpenAiApi::show_playground(const std::shared_ptr<HttpExchange>& exchange) {
  respond_with(*find_file(playground_files(), exchange->message.path), *exchange);
}

void OpenAiApi::list_models(const std::shared_ptr<HttpExchange>& exchange) {
  CallInfo info = begin_call("openai/models", state_, exchange->message, exchange->peer);
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
  const Duration longest = std::max({http_pulse_.pulse.overdue(), worker_pulse_.overdue(),
                                     turns_.longest_running(), acceptor_.since_last_poll()});
  http_pulse_.pulse.ask([this] { http_.post(&http_pulse_); });
  worker_pulse_.ask([this] { worker_.post([this] { worker_pulse_.beat(); }); });
  return longest;
}

void OpenAiApi::drain() {
  acceptor_.stop();
  http_.drain();
  turns_.stop(shutting_down());
}

void OpenAiApi::close() {
  acceptor_.stop();
  turns_.stop(shutting_down());
  http_.stop();
}

}  // namespace tandem
