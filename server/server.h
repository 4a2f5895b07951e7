// The server: ports, services, and the order in which they come up and go down.
//
//   start()   binds all ports. Health says NOT_SERVING, /readyz 503, calls get UNAVAILABLE.
//   attach()  the engine is loaded and warm: calls are served.
//   A device that is lost takes its models with it: their health says NOT_SERVING, and when none is
//             left, so does the server's, and /readyz and /healthz say 503. So they do while a
//             device, the loop or gRPC does not get on (monitor.h).
//   reload()  tokens and certificates are read again.
//   drain()   readiness off; no connection is accepted, and those without calls are closed; new
//             calls get UNAVAILABLE; streams finish within the grace time, and what is left then
//             gets UNAVAILABLE; ports close.
//
// start(), attach(), reload() and drain() belong to one thread. Everything else happens on gRPC's
// and the endpoint's threads, through ServerState.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/edge/acceptor.h"
#include "server/edge/http_endpoint.h"
#include "server/grpc/call_limiter.h"
#include "server/grpc/call_thread.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/models_service.h"
#include "server/grpc/reflection_service.h"
#include "server/grpc/tls.h"
#include "server/health/health_service.h"
#include "server/http/openai_api.h"
#include "server/observe/collector.h"
#include "server/observe/monitor.h"
#include "server/observe/span_exporter.h"
#include "server/server_state.h"

namespace tandem {

class Server {
 public:
  // Calls on their way from gRPC to a service: in all, and in reserve for connections with few.
  // Each is waited for, which takes some 4 KiB.
  static constexpr int64_t kMaxPendingCalls = 2048;
  static constexpr int64_t kPendingReserveThreshold = 8;
  static constexpr int64_t kPendingReserve = 256;

  // What start() would say of the files that `config` names; listens nowhere.
  static absl::Status check(const ServerConfig& config);

  // Errors name the address or the file.
  static absl::StatusOr<std::unique_ptr<Server>> start(ServerConfig config);
  ~Server();  // closes at once what drain() has not closed

  // `engine` outlives the server.
  void attach(Engine* engine);
  // What cannot be read stays as it is; the log says so.
  void reload();
  void drain();

  const std::string& grpc_address() const { return grpc_address_; }      // with the bound port
  const std::string& http_address() const { return http_address_; }      // empty: none
  const std::string& openai_address() const { return openai_address_; }  // likewise

 private:
  explicit Server(ServerConfig config);
  absl::Status listen();
  absl::Status start_grpc();
  std::vector<prometheus::MetricFamily> edge_metrics() const;
  HttpResponse alive() const;
  void start_spans();
  void close_idle_connections();
  void close(TimePoint deadline);

  ServerState state_;
  const SteadyClock clock_;
  // Before what gRPC serves: its calls ask it until the last of them has ended.
  CallLimiter limiter_{
      {std::min<int64_t>(state_.config.max_open_calls, kMaxPendingCalls),
       state_.config.max_concurrent_streams, kPendingReserveThreshold, kPendingReserve},
      &clock_};
  std::unique_ptr<SpanExporter> spans_;  // of calls, which tell it of their ends
  GenerationService generation_{state_};
  ModelsService models_{state_};
  HealthService health_{[this] { return state_.services(); }, &state_.health_calls};
  ReflectionService reflection_{
      {"tandem.v1.Generation", "tandem.v1.Models", "grpc.health.v1.Health",
       "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"},
      &state_.reflection_calls};
  Collector collector_{state_, [this] { return edge_metrics(); }};
  std::unique_ptr<TlsCredentials> tls_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  // Of streaming calls. gRPC reads connections on whatever thread waits for it, and one that reads
  // what a client sends without end takes no calls meanwhile; so there are two.
  std::array<std::unique_ptr<CallThread>, 2> arrivals_;
  std::unique_ptr<CallThread> streams_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<HttpEndpoint> http_;
  std::unique_ptr<OpenAiApi> openai_;
  std::string grpc_address_;
  std::string http_address_;
  std::string openai_address_;
};

}  // namespace tandem
