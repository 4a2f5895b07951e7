#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/resource.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "server/observe/log.h"
#include "server/observe/process_stats.h"

namespace tandem {
namespace {

// Time for the last messages after the engine has ended all requests.
constexpr auto kFlushTime = std::chrono::milliseconds(1500);

// Streaming calls that each thread awaits in addition to its share of the limiter's total.
constexpr int64_t kSpareCalls = 16;

// How often a drain closes idle connections.
constexpr auto kCloseIdleInterval = std::chrono::milliseconds(50);

int milliseconds(Duration d) {
  return static_cast<int>(std::min<int64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(d).count(), 2147483647));
}

// The size of one read of a connection. All calls in it exist before any is counted (PendingCalls);
// the smallest takes 15 bytes of input and about 15 KB of memory.
constexpr int kReadBytes = 8 << 10;

// Limits the memory that a peer can use. Most of gRPC's defaults are unlimited.
void set_limits(const ServerConfig& config, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(config.max_receive_bytes);
  // gRPC compares the compressed size with the limit and decompresses without one. So it never
  // decompresses, and rejects calls that announce an encoding (also CallLimiter, earlier).
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
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
  set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, milliseconds(config.max_connection_age_grace));
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, milliseconds(config.handshake_timeout));
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadBytes);
  // Covers what the limits above do not: the total of all connections, and input that a client
  // sends before it has acknowledged the limits.
  grpc::ResourceQuota quota("server");
  quota.Resize(static_cast<size_t>(config.max_transport_bytes));
  builder->SetResourceQuota(quota);
}

void warn_about_exposure(const ServerConfig& config) {
  if (!is_loopback(config.listen) && !config.use_tls) {
    log_warn("exposed", {{"listen", config.listen},
                         {"advice", config.bearer_token_file.empty()
                                        ? "reachable from other machines without TLS"
                                        : "tokens are sent unencrypted without server.tls"}});
  }
  if (!config.openai.empty() && !is_loopback(config.openai) && !config.openai_tls) {
    log_warn("exposed", {{"openai", config.openai},
                         {"advice", "plain HTTP: set server.tls, or use a proxy with TLS"}});
  }
  if (config.http != "off" && !is_loopback(config.http)) {
    log_warn("exposed",
             {{"http", config.http}, {"advice", "metrics are readable from other machines"}});
  }
}

// The names that a token file adds and removes.
void log_clients(const std::set<std::string>& before, const std::set<std::string>& after) {
  const auto difference = [](const std::set<std::string>& of,
                             const std::set<std::string>& without) {
    std::vector<std::string> names;
    std::ranges::set_difference(of, without, std::back_inserter(names));
    return absl::StrJoin(names, ",");
  };
  log_info("clients", {{"count", static_cast<int64_t>(after.size())},
                       {"added", difference(after, before), LogField::kMaxMessage},
                       {"removed", difference(before, after), LogField::kMaxMessage}});
}

// Descriptors that are not connections: models, logs, devices, the HTTP port.
constexpr rlim_t kOtherFiles = 256;

// The configured number of connections, limited by the available file descriptors.
size_t max_connections(const ServerConfig& config) {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlim_t available = files.rlim_cur > 2 * kOtherFiles
                               ? files.rlim_cur - kOtherFiles
                               : std::max<rlim_t>(1, files.rlim_cur / 2);
  const rlim_t each = config.openai.empty() ? available : available / 2;  // gRPC, HTTP
  const auto configured = static_cast<rlim_t>(config.max_connections);
  if (each < configured) {
    log_warn("few_files", {{"file_limit", static_cast<uint64_t>(files.rlim_cur)},
                           {"max_connections", static_cast<uint64_t>(each)}});
  }
  return static_cast<size_t>(std::min(configured, each));
}

// Keeps gRPC's default event engine until the process ends: a lame channel refers to it and opens
// no connection. gRPC 1.51 destroys the engine with its last channel or server, and then waits for
// its timer thread, even if that thread could not be started.
void retain_event_engine() {
  static grpc_channel* const kChannel = [] {
    grpc_init();
    return grpc_lame_client_channel_create("", GRPC_STATUS_UNAVAILABLE, "");
  }();
  static_cast<void>(kChannel);
}

}  // namespace

Server::Server(ServerConfig config) : state_(std::move(config)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::start(ServerConfig config) {
  retain_event_engine();
  std::unique_ptr<Server> server(new Server(std::move(config)));
  const std::string& tokens = server->state_.config.bearer_token_file;
  if (!tokens.empty()) {
    TANDEM_ASSIGN_OR_RETURN(BearerTokens required, BearerTokens::load(tokens));
    server->state_.authenticate_by(Authenticator(std::move(required)));
  }
  TANDEM_RETURN_IF_ERROR(server->listen());
  return server;
}

absl::Status Server::check(const ServerConfig& config) {
  if (config.use_tls) TANDEM_RETURN_IF_ERROR(check_tls(config.tls));
  if (config.openai_tls) TANDEM_RETURN_IF_ERROR(make_ssl_context(config.tls).status());
  if (config.bearer_token_file.empty()) return absl::OkStatus();
  return BearerTokens::load(config.bearer_token_file).status();
}

absl::Status Server::listen() {
  const ServerConfig& config = state_.config;
  state_.timeouts.run_thread();
  warn_about_exposure(config);
  if (!config.otlp.endpoint.empty()) start_spans();
  TANDEM_ASSIGN_OR_RETURN(Listener listener, listen_on("listen", config.listen));
  const Acceptor::Bounds bounds = {max_connections(config),
                                   static_cast<size_t>(config.max_connections_per_host)};
  acceptor_ = std::make_unique<Acceptor>(std::move(listener), bounds, config.keepalive_timeout);
  grpc_address_ = acceptor_->address();
  state_.close_connection = [this](const std::string& peer) {
    log_warn("connection_closed", {{"peer", peer}, {"why", "too many calls at once"}});
    acceptor_->close_connection(peer);
  };
  state_.deployments_changed = [this] {
    health_.changed();
    const MutexLock lock(&idle_mutex_);
    if (idle_ != nullptr) idle_->poke();
  };
  TANDEM_RETURN_IF_ERROR(start_grpc());
  const auto ready = [this] {
    return state_.ready() ? HttpResponse{200, "ready\n"} : HttpResponse{503, "not ready\n"};
  };
  if (!config.openai.empty()) {
    if (config.openai_tls) {
      TANDEM_ASSIGN_OR_RETURN(SslContext first, make_ssl_context(config.tls));
      openai_tls_ = std::make_shared<TlsContext>(std::move(first));
    }
    TANDEM_ASSIGN_OR_RETURN(openai_, OpenAiApi::start(config.openai, bounds, state_,
                                                      {[this] { return alive(); }, ready,
                                                       [this] { return gateway_page(state_); },
                                                       [this] { return exposition(collector_); }},
                                                      openai_tls_));
    openai_address_ = openai_->address();
  }
  monitor_ = std::make_unique<Monitor>(&state_, grpc_.get(), acceptor_.get(), openai_.get(),
                                       [this] { health_.changed(); });
  if (config.http != "off") {
    TANDEM_ASSIGN_OR_RETURN(
        http_, HttpEndpoint::start(config.http, {[this] { return exposition(collector_); }, ready,
                                                 [this] { return alive(); },
                                                 [this] { return gateway_page(state_); },
                                                 /*local_only=*/is_loopback(config.http)}));
    http_address_ = http_->address();
  }
  return absl::OkStatus();
}

void Server::start_spans() {
  const OtlpConfig& config = state_.config.otlp;
  SpanExporter::Options options;
  options.service_name = config.service_name;
  const ModelsOf models = [this](const std::string& deployment) {
    const Engine* const engine = state_.engine.load();
    if (engine == nullptr) return std::vector<ModelInDeployment>();
    auto found = engine->deployment(deployment);
    return found.ok() ? std::move(found->models) : std::vector<ModelInDeployment>();
  };
  std::random_device device;
  const uint64_t seed = (uint64_t{device()} << 32) | device();
  spans_ = std::make_unique<SpanExporter>(options, CallSpans(config.sample_ratio, models, seed),
                                          span_sender(config.endpoint));
  state_.call_ended = [this](const CallInfo& info, const CallSummary& summary,
                             const absl::Status& status) {
    spans_->add({info, summary, status.code(), std::chrono::steady_clock::now()});
  };
}

absl::Status Server::start_grpc() {
  const ServerConfig& config = state_.config;
  grpc::ServerBuilder builder;
  if (config.use_tls) {
    TANDEM_RETURN_IF_ERROR(check_tls(config.tls));
    tls_ = std::make_unique<TlsCredentials>(config.tls, &limiter_);
  }
  connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      config.use_tls ? tls_->credentials() : plain_credentials(&limiter_));
  set_limits(config, &builder);
  for (RawService* service : std::initializer_list<RawService*>{
           &generation_, &models_, &admin_, &health_, &open_inference_, &reflection_}) {
    service->set_limiter(&limiter_);
    builder.RegisterService(service);
  }
  for (auto& arrivals : arrivals_) {
    arrivals = std::make_unique<CallThread>(builder.AddCompletionQueue());
  }
  streams_ = std::make_unique<CallThread>(builder.AddCompletionQueue());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("listen: cannot serve on ", grpc_address_));
  }
  streams_->start();
  const int64_t threads = std::ssize(arrivals_);
  const int64_t of_each = (limiter_.calls().bounds().max_total() + threads - 1) / threads;
  for (const auto& arrivals : arrivals_) {
    arrivals->start();
    generation_.serve_streams(*arrivals, *streams_, of_each + kSpareCalls);
  }
  acceptor_->start([this](int socket, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = socket;
    connection.fd = fd;
    connections_->HandleNewConnection(&connection);
  });
  return absl::OkStatus();
}

void Server::attach(Engine* engine) {
  engine->on_device_lost([this](const std::string& device) {
    log_error("device_lost", {{"device", device}, {"ready", state_.ready() ? "yes" : "no"}});
    health_.changed();
  });
  state_.engine.store(engine);
  health_.changed();
  const MutexLock lock(&idle_mutex_);
  idle_ = std::make_unique<IdleUnloader>([engine] {
    const Engine::IdleUnloads done = engine->unload_idle();
    for (const std::string& name : done.names) {
      log_info("deployment", {{"name", name}, {"change", "unloaded, idle"}});
    }
    return done.next;
  });
}

HttpResponse Server::alive() const {
  if (state_.all_devices_lost()) return {503, "every model's device is lost\n"};
  const std::string trouble = monitor_->trouble();
  if (!trouble.empty()) return {503, trouble + "\n"};
  return {200, "ok\n"};
}

std::vector<prometheus::MetricFamily> Server::edge_metrics() {
  EdgeStats now;
  now.connections = static_cast<int64_t>(acceptor_->open());
  now.connections_refused = acceptor_->refused();
  now.connections_closed = state_.calls.closed();
  now.open_calls = state_.calls.open();
  now.pending_calls = limiter_.calls().pending();
  now.pending_calls_expired = limiter_.calls().expired();
  now.calls_refused = state_.calls.refused() + state_.health_calls.refused() +
                      state_.reflection_calls.refused() + limiter_.calls().refused();
  if (openai_ != nullptr) {
    now.connections += static_cast<int64_t>(openai_->acceptor().open());
    now.connections_refused += openai_->acceptor().refused();
  }
  if (const KvEvents* const events = kv_events_.load(); events != nullptr) {
    now.kv_events_published = events->published();
    now.kv_events_dropped = events->dropped();
  }
  now.log_lines_dropped = log_lines_dropped();
  now.memory_bytes = state_.memory->used();
  now.memory_peak_bytes = state_.memory->peak();
  now.memory_limit_bytes = state_.memory->total();
  now.memory_refused = state_.memory->refused();
  now.stuck = state_.stuck.load();
  if (spans_ != nullptr) {
    now.spans_exported = spans_->exported();
    now.traces_dropped = spans_->dropped();
  }
  std::vector<prometheus::MetricFamily> out = edge_families(now);
  const ProcessStats process = read_process();
  if (!process.error.ok() && !process_error_logged_.exchange(true)) {
    log_warn("process_metrics", {{"error", process.error.message(), LogField::kMaxMessage},
                                 {"advice", "these metrics are left out; logged once"}});
  }
  for (prometheus::MetricFamily& family : process_families(process)) {
    out.push_back(std::move(family));
  }
  return out;
}

// All ports change, or none.
absl::Status Server::reload_certificates() {
  TANDEM_ASSIGN_OR_RETURN(TlsConfig tls, read_tls(state_.config.tls_files));
  TANDEM_RETURN_IF_ERROR(check_tls(tls));
  if (openai_tls_ != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(SslContext next, make_ssl_context(tls));
    openai_tls_->replace(std::move(next));
  }
  tls_->replace(std::move(tls));
  return absl::OkStatus();
}

void Server::reload() {
  const ServerConfig& config = state_.config;
  absl::Status read;
  if (!config.bearer_token_file.empty()) {
    auto tokens = BearerTokens::load(config.bearer_token_file);
    read = tokens.status();
    if (tokens.ok()) {
      log_clients(state_.authenticator()->names(), tokens->names());
      state_.authenticate_by(Authenticator(*std::move(tokens)));
    }
  }
  if (config.use_tls) {
    read.Update(reload_certificates());
  }
  if (read.ok()) {
    log_info("reload", {{"tokens", config.bearer_token_file.empty() ? "none" : "read"},
                        {"certificates", config.use_tls ? "read" : "none"}});
  } else {
    log_error("reload", {{"error", read.message(), LogField::kMaxMessage},
                         {"advice", "unreadable files keep their old values"}});
  }
}

// gRPC's own shutdown sends GOAWAY and then cancels calls that cross it, and clients do not retry
// CANCELLED. So until the last call has ended, new calls get UNAVAILABLE and idle connections are
// closed.
void Server::drain() {
  Engine* const engine = state_.engine.load();
  state_.draining.store(true);
  if (engine != nullptr) engine->start_drain();  // rejects new requests
  health_.changed();
  monitor_->stop();
  acceptor_->stop();
  if (openai_ != nullptr) openai_->drain();
  const TimePoint end = std::chrono::steady_clock::now() + state_.config.grace;
  if (engine != nullptr) {
    log_info("drain", {{"live_requests", engine->live_requests()},
                       {"grace_seconds", seconds(state_.config.grace)}});
    TimePoint next;
    do {
      // The connection of a call that no service has received is unknown.
      if (limiter_.calls().pending() == 0) close_idle_connections();
      next = std::min(end, std::chrono::steady_clock::now() + kCloseIdleInterval);
    } while (!engine->wait_until_idle(next) && next < end);
    engine->shutdown(end);
  }
  health_.end_watches();
  const TimePoint flushed = std::chrono::steady_clock::now() + kFlushTime;
  while (state_.calls.open() > 0 && std::chrono::steady_clock::now() < flushed) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  close_idle_connections();
  close(flushed);
}

void Server::close_idle_connections() {
  acceptor_->close_idle([this](const std::string& peer) {
    return !state_.calls.has_any(peer) && !state_.health_calls.has_any(peer);
  });
}

// Skips what is already closed.
void Server::close(TimePoint deadline) {
  state_.draining.store(true);
  if (monitor_ != nullptr) monitor_->stop();
  if (acceptor_ != nullptr) acceptor_->stop();
  if (openai_ != nullptr) openai_->close();
  if (grpc_ != nullptr) {
    const auto left = deadline - std::chrono::steady_clock::now();
    grpc_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::microseconds>(left));
    for (const auto& arrivals : arrivals_) arrivals->stop();
    streams_->stop();
    grpc_.reset();
  }
  std::unique_ptr<IdleUnloader> idle;  // joined without the lock
  {
    const MutexLock lock(&idle_mutex_);
    idle = std::move(idle_);
  }
  idle.reset();
  state_.deployment_commands.reset();     // no call adds commands; the last ones use the services
  if (spans_ != nullptr) spans_->stop();  // all calls have ended
}

Server::~Server() {
  if (Engine* const engine = state_.engine.load(); engine != nullptr) engine->on_device_lost({});
  health_.end_watches();
  close(std::chrono::steady_clock::now());
  http_.reset();
}

}  // namespace tandem
