// Keys and certificates for tests, made when they are needed.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "server/edge/tls_context.h"

namespace tandem::test {

struct Identity {
  std::shared_ptr<X509> certificate;
  std::shared_ptr<EVP_PKEY> key;

  std::string certificate_pem() const {
    return text([this](BIO* to) { PEM_write_bio_X509(to, certificate.get()); });
  }
  std::string key_pem() const {
    return text([this](BIO* to) {
      PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
  std::string encrypted_key_pem() const {
    return text([this](BIO* to) {
      PEM_write_bio_PrivateKey(to, key.get(), EVP_aes_128_cbc(),
                               reinterpret_cast<const unsigned char*>("secret"), 6, nullptr,
                               nullptr);
    });
  }

 private:
  template <class Write>
  static std::string text(Write write) {
    BIO* const memory = BIO_new(BIO_s_mem());
    write(memory);
    char* bytes = nullptr;
    const auto size = static_cast<size_t>(BIO_get_mem_data(memory, &bytes));
    std::string out(bytes, size);
    BIO_free(memory);
    return out;
  }
};

// A certificate that `issuer` signs; null: self-signed, an authority. `name`: the common name, or
// empty. `alternative`: as in OpenSSL's configuration, "DNS:a.example", or empty.
inline Identity make_identity(const std::string& name, const Identity* issuer = nullptr,
                              const std::string& alternative = "") {
  static long serial = 0;
  constexpr long kDay = 24 * 3600;
  Identity out{{X509_new(), X509_free}, {EVP_EC_gen("P-256"), EVP_PKEY_free}};
  X509* const made = out.certificate.get();
  X509_set_version(made, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(made), -kDay);
  X509_gmtime_adj(X509_getm_notAfter(made), kDay);
  X509_set_pubkey(made, out.key.get());
  if (!name.empty()) {
    X509_NAME_add_entry_by_NID(X509_get_subject_name(made), NID_commonName, MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.data()),
                               static_cast<int>(name.size()), -1, 0);
  }
  X509* const by = issuer == nullptr ? made : issuer->certificate.get();
  X509_set_issuer_name(made, X509_get_subject_name(by));
  const auto extend = [&](int kind, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, by, made, nullptr, nullptr, 0);
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
    X509_add_ext(made, extension, -1);
    X509_EXTENSION_free(extension);
  };
  if (issuer == nullptr) extend(NID_basic_constraints, "critical,CA:TRUE");
  if (!alternative.empty()) extend(NID_subject_alt_name, alternative);
  X509_sign(made, (issuer == nullptr ? out : *issuer).key.get(), EVP_sha256());
  return out;
}

inline TlsConfig tls_config(const Identity& server, const Identity* clients = nullptr) {
  return {server.certificate_pem(), server.key_pem(),
          clients == nullptr ? "" : clients->certificate_pem()};
}

}  // namespace tandem::test
