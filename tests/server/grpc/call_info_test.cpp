#include "server/grpc/call_info.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/numbers.h"

namespace tandem {
namespace {

TEST(CallInfo, RequestIdsDiffer) {
  const std::string a = make_request_id(), b = make_request_id();
  EXPECT_EQ(a.size(), 20u);
  EXPECT_NE(a, b);
}

// A client must not compute the ids of others from its own.
TEST(CallInfo, RequestIdsAreNoSequence) {
  std::set<uint64_t> ids, steps;
  uint64_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    uint64_t id = 0;
    ASSERT_TRUE(absl::SimpleHexAtoi(make_request_id().substr(4), &id));
    ids.insert(id);
    steps.insert(id - before);
    before = id;
  }
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(steps.size(), 1000u);
}

TEST(CallInfo, DistinguishesDeadlinesFromCancels) {
  CallInfo info;
  EXPECT_EQ(classify_cancellation(absl::CancelledError(), info).code(),
            absl::StatusCode::kCancelled);
  info.deadline = TimePoint::min();
  EXPECT_EQ(classify_cancellation(absl::CancelledError(), info).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(classify_cancellation(absl::InternalError(""), info).code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace tandem
