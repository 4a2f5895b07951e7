// The server: ports, services, and the order of startup and shutdown.
//
//   start()   binds all ports. Health is NOT_SERVING, /readyz returns 503, calls get UNAVAILABLE.
//   attach()  the engine is loaded and warm: calls are served.
//   reload()  reads tokens and certificates again.
//   drain()   turns readiness off, stops accepting, and closes idle connections. New calls get
//             UNAVAILABLE. Streams may finish within the grace time; the rest get UNAVAILABLE.
//             Ports close.
//
// A lost device makes the health of its models NOT_SERVING. Without any model left, the server is
// NOT_SERVING too, and /readyz and /healthz return 503. The same holds while a device, the loop or
// gRPC makes no progress (observe/monitor.h).
//
// start(), attach(), reload() and drain() are called on one thread. Everything else runs on the
// threads of gRPC and of the endpoints, through ServerState.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/edge/acceptor.h"
#include "server/edge/http_endpoint.h"
#include "server/edge/tls_context.h"
#include "server/grpc/admin_service.h"
#include "server/grpc/call_limiter.h"
#include "server/grpc/call_thread.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/models_service.h"
#include "server/grpc/open_inference_service.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/tls.h"
#include "server/health/health_service.h"
#include "server/http/openai_api.h"
#include "server/idle_unloader.h"
#include "server/observe/collector.h"
#include "server/observe/kv_events.h"
#include "server/observe/monitor.h"
#include "server/observe/span_exporter.h"
#include "server/server_state.h"

namespace tandem {

class Server {
 public:
  // Limits of calls that no service has received yet. Each admitted Generate call is awaited, which
  // takes about 4 KiB.
  static constexpr int64_t kMaxPendingCalls = 2048;
  static constexpr int64_t kPendingReserveThreshold = 8;
  static constexpr int64_t kPendingReserve = 256;

  // Checks the files that `config` names, like start(), without listening.
  static absl::Status check(const ServerConfig& config);

  // Errors name the address or the file.
  static absl::StatusOr<std::unique_ptr<Server>> start(ServerConfig config);
  ~Server();  // closes everything that drain() has not closed

  // Reports the figures of `events` (may be null), which outlives the server. Call before attach().
  void observe(const KvEvents* events) { kv_events_ = events; }
  // `engine` outlives the server.
  void attach(Engine* engine);
  // Keeps the old values of files that cannot be read, and logs that.
  void reload();
  void drain();

  // The account of the memory that clients cause; for the engine.
  const std::shared_ptr<MemoryAccount>& memory() const { return state_.memory; }

  const std::string& grpc_address() const { return grpc_address_; }      // with the bound port
  const std::string& http_address() const { return http_address_; }      // empty: off
  const std::string& openai_address() const { return openai_address_; }  // the same

 private:
  explicit Server(ServerConfig config);
  absl::Status listen();
  absl::Status start_grpc();
  absl::Status reload_certificates();
  std::vector<prometheus::MetricFamily> edge_metrics();
  HttpResponse alive() const;
  void start_spans();
  void close_idle_connections();
  void close(TimePoint deadline);

  ServerState state_;
  const SteadyClock clock_;
  // Declared before the services: their calls use it until the last one has ended.
  CallLimiter limiter_{
      {std::min<int64_t>(state_.config.max_open_calls, kMaxPendingCalls),
       state_.config.max_concurrent_streams, kPendingReserveThreshold, kPendingReserve},
      &clock_};
  std::unique_ptr<SpanExporter> spans_;  // receives every ended call
  GenerationService generation_{state_};
  ModelsService models_{state_};
  AdminService admin_{state_};
  HealthService health_{[this] { return state_.services(); }, &state_.health_calls,
                        &state_.timeouts};
  OpenInferenceService open_inference_{state_};
  ReflectionService reflection_{
      {"tandem.v1.Generation", "tandem.v1.Models", "tandem.v1.Admin",
       "inference.GRPCInferenceService", "grpc.health.v1.Health",
       "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"},
      &state_.reflection_calls,
      &state_.timeouts};
  std::atomic<bool> process_error_logged_{false};
  std::atomic<const KvEvents*> kv_events_{nullptr};
  Collector collector_{state_, [this] { return edge_metrics(); }};
  std::unique_ptr<TlsCredentials> tls_;
  std::shared_ptr<TlsContext> openai_tls_;  // null: plain HTTP
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  // Threads of streaming calls. gRPC reads connections on threads that wait in a queue. A thread
  // that reads an endless input accepts no calls meanwhile, so there are two.
  std::array<std::unique_ptr<CallThread>, 2> arrivals_;
  std::unique_ptr<CallThread> streams_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<HttpEndpoint> http_;
  std::unique_ptr<OpenAiApi> openai_;
  Mutex idle_mutex_;
  std::unique_ptr<IdleUnloader> idle_ ABSL_GUARDED_BY(idle_mutex_);  // null: no engine
  std::string grpc_address_;
  std::string http_address_;
  std::string openai_address_;
};

}  // namespace tandem
