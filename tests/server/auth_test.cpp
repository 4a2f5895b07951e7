#include "server/auth.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tandem {
namespace {

TEST(Authenticator, ACertificateNamesTheClientOfAnHttpConnectionUnlessTokensAreRequired) {
  const HttpPeer named{"ipv4:10.0.0.7:41234", "ann"};
  const HttpPeer nameless{"ipv4:10.0.0.7:41234", ""};
  const Authenticator open;
  EXPECT_EQ(*open.identify("", named), "ann");
  EXPECT_EQ(*open.identify("", nameless), "10.0.0.7");
  EXPECT_TRUE(open.names().empty());
  const Authenticator tokens(*BearerTokens::parse("bob 0123456789abcdef\n", "tokens"));
  EXPECT_EQ(*tokens.identify("Bearer 0123456789abcdef", named), "bob");
  EXPECT_EQ(tokens.identify("", named).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(tokens.names(), std::set<std::string>{"bob"});
}

TEST(Authenticator, OneHostIsOneClient) {
  EXPECT_EQ(host_of_peer("ipv4:10.0.0.7:41234"), "10.0.0.7");
  EXPECT_EQ(host_of_peer("ipv6:%5B2001:db8::1%5D:5000"), "2001:db8::/64");
  EXPECT_EQ(host_of_peer("unix:/tmp/x"), "unix:/tmp/x");
}

}  // namespace
}  // namespace tandem
