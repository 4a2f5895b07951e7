#include "server/edge/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <algorithm>

#include "absl/strings/string_view.h"

namespace tandem {
namespace {

constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";  // of TLS 1.2
constexpr long kMaxCertificateBytes = 32 << 10;             // of a client, with its chain
constexpr int kMaxChain = 8;
constexpr absl::string_view kProtocol = "\x08http/1.1";  // as ALPN encodes it

template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

Bio bio_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// An encrypted key is an error. OpenSSL would ask for its passphrase on the terminal.
int no_passphrase(char*, int, int, void*) { return -1; }

Certificate next_certificate(BIO* from) {
  return Certificate(PEM_read_bio_X509(from, nullptr, no_passphrase, nullptr));
}

// Whether the last read failed only because the text has ended.
bool at_end() {
  const bool end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return end;
}

bool use_certificate(SSL_CTX* context, const std::string& text) {
  const Bio from = bio_of(text);
  const Certificate own = next_certificate(from.get());
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  while (Certificate issuer = next_certificate(from.get())) {
    if (SSL_CTX_add1_chain_cert(context, issuer.get()) != 1) return false;
  }
  return at_end();
}

bool use_key(SSL_CTX* context, const std::string& text) {
  const Bio from = bio_of(text);
  const Key key(PEM_read_bio_PrivateKey(from.get(), nullptr, no_passphrase, nullptr));
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

bool require_clients_of(SSL_CTX* context, const std::string& text) {
  const Bio from = bio_of(text);
  int count = 0;
  while (Certificate authority = next_certificate(from.get())) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return false;
    }
    ++count;
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(context, kMaxChain);
  return at_end() && count > 0;
}

// A client that offers only other protocols is refused: it would not understand the answers.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* offered, unsigned int size, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size,
                            reinterpret_cast<const unsigned char*>(kProtocol.data()),
                            kProtocol.size(), offered, size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

bool configure(SSL_CTX* context) {
  SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  // A read returns after each record that holds no data, so that a flood of them delays no other
  // connection. Writes may be partial, and from a buffer that has grown.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_max_cert_list(context, kMaxCertificateBytes);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  return SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
         SSL_CTX_set_cipher_list(context, kCiphers) == 1;
}

}  // namespace

absl::StatusOr<SslContext> make_ssl_context(const TlsConfig& config) {
  ERR_clear_error();
  SslContext context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr || !configure(context.get())) {
    ERR_clear_error();
    return absl::InternalError("OpenSSL cannot create a TLS context");
  }
  const bool usable =
      use_certificate(context.get(), config.certificate) && use_key(context.get(), config.key) &&
      (config.client_ca.empty() || require_clients_of(context.get(), config.client_ca));
  ERR_clear_error();
  if (usable) return context;
  return absl::InvalidArgumentError(
      "server.tls: unusable; allowed: certificate and key of one pair, and client_ca, each in PEM");
}

}  // namespace tandem
