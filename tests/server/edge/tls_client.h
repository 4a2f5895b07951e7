// A TLS client of a server on the simulated network.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/server/edge/certificates.h"
#include "tests/server/edge/simulated_network.h"

namespace tandem::test {

class TlsClient {
 public:
  struct Options {
    const Identity* trusted = nullptr;   // the server's issuer; null: any
    const Identity* identity = nullptr;  // the client's; null: none
    std::string protocols;               // ALPN: each with its length before it
    int newest = TLS1_3_VERSION;
  };

  TlsClient(SimulatedNetwork* net, int socket, const Options& options)
      : net_(*net), socket_(socket) {
    context_.reset(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX* const context = context_.get();
    SSL_CTX_set_security_level(context, 0);  // may try what the server refuses
    SSL_CTX_set_max_proto_version(context, options.newest);
    if (options.trusted != nullptr) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context), options.trusted->certificate.get());
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    }
    if (options.identity != nullptr) {
      SSL_CTX_use_certificate(context, options.identity->certificate.get());
      SSL_CTX_use_PrivateKey(context, options.identity->key.get());
    }
    ssl_.reset(SSL_new(context), SSL_free);
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(in_, -1);
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_connect_state(ssl_.get());
    if (!options.protocols.empty()) {
      SSL_set_alpn_protos(ssl_.get(),
                          reinterpret_cast<const unsigned char*>(options.protocols.data()),
                          static_cast<unsigned>(options.protocols.size()));
    }
  }

  // Exchanges what is there. What the server sent is in `received`.
  void pump() {
    const std::string arrived = net_.read_from_server(socket_);
    BIO_write(in_, arrived.data(), static_cast<int>(arrived.size()));
    ERR_clear_error();
    if (SSL_is_init_finished(ssl_.get()) == 0 && SSL_do_handshake(ssl_.get()) != 1) note_error();
    std::array<char, 16384> piece;
    for (int n = 1; n > 0 && SSL_is_init_finished(ssl_.get()) == 1;) {
      ERR_clear_error();
      n = SSL_read(ssl_.get(), piece.data(), piece.size());
      if (n > 0) received.append(piece.data(), static_cast<size_t>(n));
      if (n <= 0) note_error();
    }
    flush();
  }
  // REQUIRES: connected().
  void send(absl::string_view bytes) {
    SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
    flush();
  }
  void update_key() {
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_REQUESTED);
    SSL_do_handshake(ssl_.get());
    flush();
  }
  void send_close_notify() {
    SSL_shutdown(ssl_.get());
    flush();
  }

  bool connected() const { return SSL_is_init_finished(ssl_.get()) == 1; }
  // The server has announced the end of its output.
  bool received_close_notify() const {
    return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  }
  std::string version() const { return SSL_get_version(ssl_.get()); }
  std::string cipher() const { return SSL_get_cipher_name(ssl_.get()); }
  std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &name, &size);
    return size == 0 ? "" : std::string(reinterpret_cast<const char*>(name), size);
  }
  std::string issuer() const {
    std::array<char, 64> name{};
    const X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
    X509_NAME_get_text_by_NID(X509_get_issuer_name(certificate), NID_commonName, name.data(),
                              name.size());
    return name.data();
  }
  SSL* ssl() { return ssl_.get(); }

  std::string received;
  std::string error;  // OpenSSL's, such as "tlsv13 alert certificate required"

 private:
  void note_error() {
    if (const unsigned long code = ERR_peek_error(); code != 0) {
      error = ERR_reason_error_string(code);
    }
  }
  void flush() {
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(out_, &bytes);
    if (size > 0) net_.send_to_server(socket_, {bytes, static_cast<size_t>(size)});
    (void)BIO_reset(out_);
  }

  SimulatedNetwork& net_;
  const int socket_;
  std::shared_ptr<SSL_CTX> context_;
  std::shared_ptr<SSL> ssl_;
  BIO* in_;
  BIO* out_;
};

}  // namespace tandem::test
