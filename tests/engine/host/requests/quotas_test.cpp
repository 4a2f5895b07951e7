#include "engine/host/requests/quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

struct Kit {
  explicit Kit(ClientLimits ann) {
    LimitsConfig limits;
    limits.clients["ann"] = ann;
    quotas = std::make_unique<Quotas>(limits, &clock);
  }
  // "", or milliseconds after which to try again.
  std::string try_open() {
    auto open = quotas->open("ann", &reason);
    if (open.ok()) {
      held.push_back(*std::move(open));
      return "";
    }
    EXPECT_EQ(open.status().code(), absl::StatusCode::kResourceExhausted);
    message = std::string(open.status().message());
    return std::string(*open.status().GetPayload(kRetryPayload));
  }

  VirtualClock clock;
  std::unique_ptr<Quotas> quotas;
  std::vector<Quotas::OpenRequest> held;
  RejectReason reason{};
  std::string message;
};

TEST(Quotas, BoundOpenRequests) {
  Kit kit({.max_requests = 2});
  EXPECT_EQ(kit.try_open(), "");
  EXPECT_EQ(kit.try_open(), "");
  EXPECT_NE(kit.try_open(), "");
  EXPECT_EQ(kit.reason, RejectReason::kQuotaOpen);
  EXPECT_THAT(kit.message, HasSubstr("client \"ann\": 2 requests are open; allowed: 2"));
  EXPECT_TRUE(kit.quotas->open("bob", &kit.reason).ok());  // who has no quotas
  kit.held.pop_back();
  EXPECT_EQ(kit.try_open(), "");
}

TEST(Quotas, LimitRequestsPerMinute) {
  Kit kit({.requests_per_minute = 3});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(kit.try_open(), "");
  EXPECT_EQ(kit.try_open(), "20000");
  EXPECT_EQ(kit.reason, RejectReason::kQuotaRequests);
  kit.clock.advance(std::chrono::seconds(15));
  EXPECT_EQ(kit.try_open(), "5000");
  kit.clock.advance(std::chrono::seconds(5));
  EXPECT_EQ(kit.try_open(), "");
  EXPECT_EQ(kit.try_open(), "20000");
  kit.clock.advance(std::chrono::hours(1));  // no more than a minute's worth is saved
  for (int i = 0; i < 3; ++i) EXPECT_EQ(kit.try_open(), "");
  EXPECT_EQ(kit.try_open(), "20000");
}

TEST(Quotas, ARareRequestIsAdmitted) {
  Kit kit({.requests_per_minute = 0.5});
  EXPECT_EQ(kit.try_open(), "");
  EXPECT_EQ(kit.try_open(), "120000");
  kit.clock.advance(std::chrono::minutes(2));
  EXPECT_EQ(kit.try_open(), "");
}

TEST(Quotas, TokensArePaidOff) {
  Kit kit({.tokens_per_minute = 60});
  EXPECT_EQ(kit.try_open(), "");
  kit.held[0].charge(50);
  EXPECT_EQ(kit.try_open(), "");
  kit.held[1].charge(39);  // 29 more than there were
  EXPECT_EQ(kit.try_open(), "30000");
  EXPECT_EQ(kit.reason, RejectReason::kQuotaTokens);
  kit.clock.advance(std::chrono::seconds(30));
  EXPECT_EQ(kit.try_open(), "");
}

TEST(Quotas, PriorityIsARight) {
  LimitsConfig limits;
  limits.default_client.max_priority = -1;
  limits.clients["ann"].max_priority = 7;
  const VirtualClock clock;
  const Quotas quotas(limits, &clock);
  EXPECT_TRUE(quotas.check_priority("ann", 7).ok());
  EXPECT_TRUE(quotas.check_priority("bob", -100).ok());
  EXPECT_EQ(quotas.check_priority("ann", 8).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(quotas.check_priority("bob", 0).message(),
            "priority: 0; allowed: at most -1 for client \"bob\" (limits.clients, max_priority)");
  EXPECT_EQ(quotas.max_priority("ann"), 7);
  EXPECT_EQ(quotas.max_priority("bob"), -1);
}

TEST(Quotas, OnlyClientsWithStateAreRemembered) {
  LimitsConfig limits;
  limits.default_client.requests_per_minute = 60;
  VirtualClock clock;
  Quotas quotas(limits, &clock);
  RejectReason reason{};
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_TRUE(quotas.open(std::to_string(i), &reason).ok());
    clock.advance(std::chrono::milliseconds(10));
    EXPECT_LE(quotas.size(), 1024U);
  }
}

}  // namespace
}  // namespace tandem
