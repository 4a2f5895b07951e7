// TLS whose certificates can be replaced while the server runs: connections that come later get the
// new ones.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/status.h"
#include "server/call_gate.h"
#include "server/server_config.h"

namespace tandem {

// INVALID_ARGUMENT when gRPC can make nothing of certificate, key and authority.
absl::Status check_tls(const TlsConfig& config);

class TlsCredentials {
 public:
  // `gate` outlives the server.
  TlsCredentials(TlsConfig config, CallGate* gate);
  ~TlsCredentials();

  // For one port of one server, which this outlives.
  std::shared_ptr<grpc::ServerCredentials> credentials() const;

  // REQUIRES: check_tls(config) is OK. Whether clients need certificates stays as it is.
  // Thread-safe.
  void replace(TlsConfig config);

 private:
  class Fetcher;
  class Credentials;
  const std::unique_ptr<Fetcher> fetcher_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
};

}  // namespace tandem
