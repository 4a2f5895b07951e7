#include "server/grpc/call_info.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(CallInfo, RequestIdsDiffer) {
  const std::string a = make_request_id(), b = make_request_id();
  EXPECT_EQ(a.size(), 20u);
  EXPECT_NE(a, b);
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
