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

}  // namespace
}  // namespace tandem
