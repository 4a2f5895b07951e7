// The certificates of a TLS port. They can be replaced while the server runs: new connections use
// the new ones, open connections keep theirs.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace tandem {

struct TlsConfig {
  std::string certificate;  // PEM text, as are the others
  std::string key;
  std::string client_ca;  // empty: clients need no certificate
};

using SslContext = std::shared_ptr<ssl_ctx_st>;

// For servers of HTTP/1.1: TLS 1.2 and 1.3, forward secrecy and authenticated encryption only. No
// resumption, compression or renegotiation: every connection presents its certificate, and no
// state is kept for clients that left. INVALID_ARGUMENT if OpenSSL cannot use the texts.
absl::StatusOr<SslContext> make_ssl_context(const TlsConfig& config);

// Thread-safe.
class TlsContext {
 public:
  explicit TlsContext(SslContext first) : current_(std::move(first)) {}

  SslContext get() const {
    const MutexLock lock(&mutex_);
    return current_;
  }
  void replace(SslContext next) {
    const MutexLock lock(&mutex_);
    current_.swap(next);
  }

 private:
  mutable Mutex mutex_;
  SslContext current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
