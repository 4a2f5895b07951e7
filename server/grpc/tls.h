// TLS whose certificates can be replaced while the server runs. New connections use the new ones.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/status.h"
#include "server/grpc/call_limiter.h"
#include "server/server_config.h"

namespace tandem {

// INVALID_ARGUMENT if gRPC cannot use the certificate, key and authority.
absl::Status check_tls(const TlsConfig& config);

class TlsCredentials {
 public:
  class Fetcher;

  // `limiter` outlives the server.
  TlsCredentials(TlsConfig config, CallLimiter* limiter);
  ~TlsCredentials();

  // For one port of one server, which this outlives.
  std::shared_ptr<grpc::ServerCredentials> credentials() const;

  // REQUIRES: check_tls(config) is OK. Does not change whether clients need certificates.
  // Thread-safe.
  void replace(TlsConfig config);

 private:
  const std::unique_ptr<Fetcher> fetcher_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
};

}  // namespace tandem
