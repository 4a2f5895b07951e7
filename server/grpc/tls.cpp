#include "server/grpc/tls.h"

#include <grpc/grpc_security.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>
#include <utility>

#include "engine/base/mutex.h"

namespace tandem {

// Tries the files on a temporary server: credentials with a fetcher report bad files only in the
// log, at every handshake.
absl::Status check_tls(const TlsConfig& config) {
  grpc::SslServerCredentialsOptions options(
      config.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                               : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_key_cert_pairs.push_back({config.key, config.certificate});
  options.pem_root_certs = config.client_ca;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server != nullptr) server->Shutdown();
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
  if (server != nullptr && port != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "server.tls: unusable; allowed: certificate and key of one pair, and client_ca, each in PEM");
}

// Supplies certificates; gRPC calls it at every handshake.
class TlsCredentials::Fetcher {
 public:
  explicit Fetcher(TlsConfig config) : config_(std::move(config)) {}

  void replace(TlsConfig config) {
    const MutexLock lock(&mutex_);
    config_ = std::move(config);
    fresh_ = true;
  }

  static grpc_ssl_certificate_config_reload_status fetch(void* self,
                                                         grpc_ssl_server_certificate_config** out) {
    return static_cast<Fetcher*>(self)->fetch_to(out);
  }

 private:
  grpc_ssl_certificate_config_reload_status fetch_to(grpc_ssl_server_certificate_config** out) {
    const MutexLock lock(&mutex_);
    if (!fresh_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    fresh_ = false;
    const grpc_ssl_pem_key_cert_pair pair = {config_.key.c_str(), config_.certificate.c_str()};
    // gRPC requires a root even if clients need no certificate.
    const std::string& roots = config_.client_ca.empty() ? config_.certificate : config_.client_ca;
    *out = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  Mutex mutex_;
  TlsConfig config_ ABSL_GUARDED_BY(mutex_);
  bool fresh_ ABSL_GUARDED_BY(mutex_) = true;  // gRPC has not seen it
};

namespace {

grpc_server_credentials* fetched_credentials(bool client_certificates,
                                             TlsCredentials::Fetcher* fetcher) {
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          client_certificates ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                              : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
          &TlsCredentials::Fetcher::fetch, fetcher));
}

}  // namespace

TlsCredentials::TlsCredentials(TlsConfig config, CallLimiter* limiter)
    : fetcher_(std::make_unique<Fetcher>(config)),
      credentials_(limited_credentials(
          fetched_credentials(!config.client_ca.empty(), fetcher_.get()), limiter)) {}
TlsCredentials::~TlsCredentials() = default;

std::shared_ptr<grpc::ServerCredentials> TlsCredentials::credentials() const {
  return credentials_;
}

void TlsCredentials::replace(TlsConfig config) { fetcher_->replace(std::move(config)); }

}  // namespace tandem
