#include "server/gateway_headers.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

namespace tandem {
namespace {

ServerConfig config() {
  ServerConfig out;
  out.trusted_gateways = {"gateway", "10.0.0.7"};
  out.objectives = {{"batch", -10}, {"urgent", 50}};
  return out;
}

GatewayHeaders headers_in(const std::map<std::string, std::string>& sent) {
  return gateway_headers([&sent](const std::string& name) {
    const auto found = sent.find(name);
    return found == sent.end() ? std::string() : found->second;
  });
}

TEST(GatewayHeaders, ReadsBothNames) {
  const GatewayHeaders older = headers_in(
      {{"x-gateway-inference-fairness-id", "ann"}, {"x-gateway-inference-objective", "batch"}});
  EXPECT_EQ(older.fairness_id, "ann");
  EXPECT_EQ(older.objective, "batch");
  const GatewayHeaders both = headers_in({{"x-gateway-inference-fairness-id", "ann"},
                                          {"x-llm-d-inference-fairness-id", "bob"},
                                          {"x-llm-d-inference-objective", "urgent"}});
  EXPECT_EQ(both.fairness_id, "bob");
  EXPECT_EQ(both.objective, "urgent");
  EXPECT_EQ(headers_in({}).fairness_id, "");
}

TEST(GatewayHeaders, CountFromTrustedGateways) {
  for (const char* identity : {"gateway", "10.0.0.7"}) {
    const Sender sender = sender_of(config(), identity, {"ann", "batch"});
    EXPECT_EQ(sender.client, "ann");
    EXPECT_EQ(sender.priority, -10);
  }
}

TEST(GatewayHeaders, AreIgnoredFromOthers) {
  for (const char* identity : {"10.0.0.8", "ann", "gateway2", ""}) {
    const Sender sender = sender_of(config(), identity, {"bob", "urgent"});
    EXPECT_EQ(sender.client, identity);
    EXPECT_EQ(sender.priority, std::nullopt);
  }
  EXPECT_EQ(sender_of(ServerConfig(), "gateway", {"bob", "urgent"}).client, "gateway");
  EXPECT_EQ(sender_of(ServerConfig(), "", {"bob", "urgent"}).client, "");
}

// A fairness id that was accepted does not make its sender a gateway.
TEST(GatewayHeaders, TrustFollowsThePeer) {
  EXPECT_EQ(sender_of(config(), "ann", {"gateway", ""}).client, "ann");
}

TEST(GatewayHeaders, UnusableValuesAreIgnored) {
  for (const std::string& id :
       {std::string(), std::string("a\nb"), std::string("\xC3\xA9"), std::string(129, 'x')}) {
    EXPECT_EQ(sender_of(config(), "gateway", {id, ""}).client, "gateway");
  }
  EXPECT_EQ(sender_of(config(), "gateway", {std::string(128, 'x'), ""}).client,
            std::string(128, 'x'));
  EXPECT_EQ(sender_of(config(), "gateway", {"ann", "other"}).priority, std::nullopt);
  EXPECT_EQ(sender_of(config(), "gateway", {"ann", ""}).priority, std::nullopt);
}

}  // namespace
}  // namespace tandem
