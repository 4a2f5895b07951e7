#include "server/edge/open_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

TEST(OpenCalls, RefusesAtTheBoundAndClosesWhoPassesItTwice) {
  std::vector<std::string> closed;
  OpenCalls calls({/*total=*/5, /*per_connection=*/2},
                  [&](const std::string& peer) { closed.push_back(peer); });
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(calls.enter("a").ok());
  EXPECT_EQ(calls.enter("a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(closed, std::vector<std::string>{"a"});
  EXPECT_TRUE(calls.enter("b").ok());
  EXPECT_THAT(std::string(calls.enter("b").message()), testing::HasSubstr("server.max_open_calls"));
  EXPECT_EQ(closed.size(), 1U);
  EXPECT_EQ(calls.open(), 5);
  EXPECT_EQ(calls.refused(), 2);
  calls.leave("a");
  EXPECT_TRUE(calls.enter("b").ok());
}

TEST(OpenCalls, LeavesSomeToOtherHosts) {
  OpenCalls calls({/*total=*/8, /*per_connection=*/8}, [](const std::string&) {});
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(calls.enter(absl::StrCat("ipv4:10.0.0.7:", 1000 + i)).ok());
  }
  const absl::Status refused = calls.enter("ipv4:10.0.0.7:2000");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("open calls of one host: limit 6"));
  EXPECT_TRUE(calls.enter("ipv4:10.0.0.8:1").ok());
  EXPECT_TRUE(calls.enter("unix:").ok()) << "such peers are as many as they are";
  EXPECT_FALSE(calls.has_any("ipv4:10.0.0.7:2000"));
  calls.leave("ipv4:10.0.0.7:1000");
  EXPECT_TRUE(calls.enter("ipv4:10.0.0.7:2000").ok());
}

// Returns the closed connections. One connection makes the calls; `abandoned` of 10 are abandoned.
std::vector<std::string> closed_after(int calls_of_peer, int abandoned) {
  std::vector<std::string> closed;
  OpenCalls calls({/*total=*/8, /*per_connection=*/8},
                  [&](const std::string& peer) { closed.push_back(peer); });
  for (int i = 1; i <= calls_of_peer; ++i) {
    EXPECT_TRUE(calls.enter("ipv4:10.0.0.7:1").ok());
    calls.leave("ipv4:10.0.0.7:1", /*abandoned=*/i % 10 < abandoned);
    EXPECT_TRUE(calls.enter("ipv4:10.0.0.7:2").ok()) << "another connection of the host";
    calls.leave("ipv4:10.0.0.7:2");
  }
  EXPECT_EQ(calls.closed(), static_cast<int64_t>(closed.size()));
  EXPECT_EQ(calls.open(), 0);
  EXPECT_FALSE(calls.has_any("ipv4:10.0.0.7:1"));
  return closed;
}

TEST(OpenCalls, ClosesAConnectionWhoseCallsEndAtOnce) {
  constexpr int kMost = OpenCalls::kMaxAbandoned;
  const std::vector<std::string> one = {"ipv4:10.0.0.7:1"};
  EXPECT_EQ(closed_after(kMost - 1, 10).size(), 0U);
  EXPECT_EQ(closed_after(kMost, 10), one);
  EXPECT_EQ(closed_after(2 * kMost - 1, 10), one) << "the count begins anew";
  EXPECT_EQ(closed_after(2 * kMost, 6), one);
  EXPECT_EQ(closed_after(20 * kMost, 4).size(), 0U) << "most calls are answered";
}

TEST(OpenCalls, ALongHistoryDoesNotExcuseAFlood) {
  std::vector<std::string> closed;
  OpenCalls calls({/*total=*/8, /*per_connection=*/8},
                  [&](const std::string& peer) { closed.push_back(peer); });
  for (int i = 0; i < 100 * OpenCalls::kMaxAbandoned; ++i) {
    ASSERT_TRUE(calls.enter("a").ok());
    calls.leave("a");
  }
  for (int i = 0; i < 3 * OpenCalls::kMaxAbandoned && closed.empty(); ++i) {
    ASSERT_TRUE(calls.enter("a").ok());
    calls.leave("a", /*abandoned=*/true);
  }
  EXPECT_EQ(closed, std::vector<std::string>{"a"});
}

TEST(OpenCalls, RemembersABoundedNumberOfPeers) {
  OpenCalls calls({/*total=*/8, /*per_connection=*/8}, [](const std::string&) {});
  for (int i = 0; i < 10'000; ++i) {
    const std::string peer = absl::StrCat("ipv4:10.0.0.7:", i);
    ASSERT_TRUE(calls.enter(peer).ok());
    calls.leave(peer, /*abandoned=*/true);
  }
  EXPECT_LE(calls.remembered(), 4096U);
}

}  // namespace
}  // namespace tandem
