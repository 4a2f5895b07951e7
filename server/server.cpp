#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/log.h"

namespace tandem {
namespace {

// After the engine has ended all requests, their last messages still have to leave.
constexpr auto kFlushTime = std::chrono::seconds(5);

int milliseconds(Duration d) {
  return static_cast<int>(std::min<int64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(d).count(), 2147483647));
}

std::shared_ptr<grpc::ServerCredentials> credentials(const ServerConfig& config) {
  if (!config.use_tls) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      config.tls.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                   : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_key_cert_pairs.push_back({config.tls.key, config.tls.certificate});
  options.pem_root_certs = config.tls.client_ca;
  return grpc::SslServerCredentials(options);
}

// Bounds on what one peer can make the server hold. gRPC's own defaults have none for most.
void set_limits(const ServerConfig& config, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(config.max_receive_bytes);
  const auto set = [builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  };
  set(GRPC_ARG_MAX_METADATA_SIZE, config.max_metadata_bytes);
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(config.keepalive));
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds(config.keepalive_timeout));
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, milliseconds(config.min_client_ping));
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, milliseconds(config.max_connection_idle));
  set(GRPC_ARG_MAX_CONNECTION_AGE_MS, milliseconds(config.max_connection_age));
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, milliseconds(config.handshake_timeout));
  // Otherwise a second server on the same port takes half of the calls, silently.
  set(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

void warn_about_exposure(const ServerConfig& config) {
  if (!is_loopback(config.listen) && !config.use_tls) {
    log_warn("exposed", {{"listen", config.listen},
                         {"advice",
                          "reachable from other machines without TLS: use server.tls with a "
                          "client_ca, or a patched proxy in front"}});
  }
  if (!config.bearer_token_file.empty() && !config.use_tls && !is_loopback(config.listen)) {
    log_warn("exposed", {{"bearer_token_file", config.bearer_token_file},
                         {"advice", "tokens travel in the clear without server.tls"}});
  }
  if (config.http != "off" && !is_loopback(config.http)) {
    log_warn("exposed",
             {{"http", config.http}, {"advice", "metrics are readable from other machines"}});
  }
}

}  // namespace

Server::Server(ServerConfig config) { state_.config = std::move(config); }

absl::StatusOr<std::unique_ptr<Server>> Server::start(ServerConfig config) {
  std::unique_ptr<Server> server(new Server(std::move(config)));
  const std::string& tokens = server->state_.config.bearer_token_file;
  if (!tokens.empty()) {
    TANDEM_ASSIGN_OR_RETURN(server->state_.auth, Authenticator::load(tokens));
  }
  TANDEM_RETURN_IF_ERROR(server->listen());
  return server;
}

absl::Status Server::listen() {
  const ServerConfig& config = state_.config;
  warn_about_exposure(config);
  if (config.http != "off") {
    TANDEM_ASSIGN_OR_RETURN(
        http_, HttpEndpoint::start(config.http, {[this] { return exposition(collector_); },
                                                 [this] { return state_.ready(); },
                                                 [this] { return !state_.past_help(); }}));
    http_address_ = http_->address();
  }

  static std::once_flag reflection;
  std::call_once(reflection, [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(config.listen, credentials(config), &port);
  set_limits(config, &builder);
  builder.RegisterService(&generation_);
  builder.RegisterService(&models_);
  builder.RegisterService(&health_);
  arrivals_ = std::make_unique<CallThread>(builder.AddCompletionQueue());
  streams_ = std::make_unique<CallThread>(builder.AddCompletionQueue());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "listen: cannot listen on ", config.listen,
        config.use_tls ? "; is the port taken, or a TLS file wrong?" : "; is the port taken?"));
  }
  arrivals_->start();
  streams_->start();
  generation_.serve_streams(*arrivals_, *streams_);
  grpc_address_ = absl::StartsWith(config.listen, "unix:")
                      ? config.listen
                      : absl::StrCat(config.listen.substr(0, config.listen.rfind(':')), ":", port);
  return absl::OkStatus();
}

void Server::attach(Engine* engine) {
  engine->on_device_lost([this](const std::string& device) {
    log_error("device_lost", {{"device", device}, {"ready", state_.ready() ? "yes" : "no"}});
    health_.changed();
  });
  state_.engine.store(engine);
  health_.changed();
}

void Server::drain() {
  state_.draining.store(true);
  health_.changed();
  const TimePoint end = std::chrono::steady_clock::now() + state_.config.grace;
  if (Engine* const engine = state_.engine.load(); engine != nullptr) {
    engine->start_drain();
    log_info("drain", {{"live_requests", engine->live_requests()},
                       {"grace_seconds", seconds(state_.config.grace)}});
    engine->shutdown(end);
  }
  close(std::chrono::steady_clock::now() + kFlushTime);
}

void Server::close(TimePoint deadline) {
  state_.draining.store(true);
  if (Engine* const engine = state_.engine.load(); engine != nullptr) engine->on_device_lost({});
  health_.end_watches();
  if (grpc_ != nullptr) {
    const auto left = deadline - std::chrono::steady_clock::now();
    grpc_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::microseconds>(left));
    arrivals_->stop();
    streams_->stop();
    grpc_.reset();
  }
  http_.reset();
}

Server::~Server() { close(std::chrono::steady_clock::now()); }

}  // namespace tandem
