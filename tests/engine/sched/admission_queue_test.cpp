#include "engine/sched/admission_queue.h"

#include <gtest/gtest.h>

#include "engine/base/status.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(RetryHint, FollowsTheRateAndTheQueue) {
  RetryHint hint;
  EXPECT_EQ(hint.estimate(100, TimePoint(9s)), 1s) << "nothing is known yet";
  for (int i = 0; i <= 10; ++i) hint.served(TimePoint(i * 200ms));
  EXPECT_EQ(hint.estimate(9, TimePoint(2s)), 2s);
  EXPECT_EQ(hint.estimate(4, TimePoint(2s)), 1s);
  EXPECT_EQ(hint.estimate(4, TimePoint(4s)), 2s) << "nothing went since";
}

TEST(RetryHint, IsBounded) {
  RetryHint hint;
  for (int i = 0; i < 5; ++i) hint.served(TimePoint(i * 1us));
  EXPECT_EQ(hint.estimate(3, TimePoint(4us)), RetryHint::kLeast);
  EXPECT_EQ(hint.estimate(size_t{1} << 60, TimePoint(4us)), RetryHint::kMost);
  for (int i = 0; i < 5; ++i) hint.served(TimePoint(i * 1h));
  EXPECT_EQ(hint.estimate(0, TimePoint(9h)), RetryHint::kMost);
  hint.idle();
  EXPECT_EQ(hint.estimate(0, TimePoint(9h)), 1s);
}

TEST(RetryHint, GoesWithTheStatus) {
  const absl::Status status = with_retry_hint(absl::ResourceExhaustedError("full"), 1500ms);
  EXPECT_EQ(status.GetPayload(kRetryPayload), absl::Cord("1500"));
  EXPECT_EQ(status.message(), "full");
}

}  // namespace
}  // namespace tandem
