#include "server/edge/tls_context.h"

#include <gtest/gtest.h>

#include "tests/server/edge/certificates.h"

namespace tandem {
namespace {

using test::Identity;
using test::make_identity;

TEST(TlsContext, AcceptsAPairWithItsChainAndAuthorities) {
  const Identity root = make_identity("root");
  const Identity server = make_identity("server", &root);
  TlsConfig config = test::tls_config(server);
  EXPECT_TRUE(make_ssl_context(config).ok());
  config.certificate += root.certificate_pem();
  config.client_ca = root.certificate_pem() + make_identity("other").certificate_pem();
  EXPECT_TRUE(make_ssl_context(config).ok());
}

TEST(TlsContext, RefusesWhatItCannotUse) {
  const Identity server = make_identity("server");
  const TlsConfig good = test::tls_config(server);
  const std::string cut = good.certificate.substr(0, good.certificate.size() / 2);
  const TlsConfig bad[] = {
      {"", "", ""},
      {"not PEM", good.key, ""},
      {good.key, good.key, ""},
      {good.certificate, good.certificate, ""},
      {good.certificate, make_identity("server").key_pem(), ""},  // of another pair
      {good.certificate, server.encrypted_key_pem(), ""},
      {cut, good.key, ""},
      {good.certificate + cut, good.key, ""},
      {good.certificate, good.key, "not PEM"},
      {good.certificate, good.key, good.certificate + cut},
  };
  for (const TlsConfig& config : bad) {
    const absl::Status status = make_ssl_context(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << &config - bad;
    EXPECT_EQ(std::string(status.message()),
              "server.tls: unusable; allowed: certificate and key of one pair, and client_ca, each "
              "in PEM");
  }
}

TEST(TlsContext, HoldersOfTheOldContextKeepIt) {
  const TlsConfig config = test::tls_config(make_identity("server"));
  TlsContext context(*make_ssl_context(config));
  const SslContext old = context.get();
  const SslContext next = *make_ssl_context(config);
  context.replace(next);
  EXPECT_EQ(context.get(), next);
  EXPECT_NE(old, next);
  EXPECT_EQ(old.use_count(), 1);
}

}  // namespace
}  // namespace tandem
