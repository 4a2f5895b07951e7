// Timestamps and sums in a sequence's end and its method's metrics.
#include "engine/sched/sequence_accounts.h"

#include <gtest/gtest.h>

#include "engine/sched/timers.h"

namespace tandem {
namespace {

TimePoint at(double s) { return TimePoint() + duration(s); }

TEST(SequenceAccounts, ARequestThatIsNeverAdmittedOnlyWaits) {
  const SequenceAccounts a(at(1), nullptr);
  const MethodStats end = a.at_end(at(5));
  EXPECT_DOUBLE_EQ(end.queue_seconds, 4);
  EXPECT_DOUBLE_EQ(end.prefill_seconds, 0);
  EXPECT_DOUBLE_EQ(end.decode_seconds, 0);
  EXPECT_DOUBLE_EQ(end.mean_batch_rows, 0);
}

TEST(SequenceAccounts, TimeIsCutAtAdmissionAndAtTheFirstToken) {
  SequenceAccounts a(at(1), nullptr);
  a.admitted(at(3));
  EXPECT_DOUBLE_EQ(a.at_end(at(4)).prefill_seconds, 1) << "until its end, without a token";
  EXPECT_FALSE(a.has_first_token());
  a.emitted(1, true, at(7));
  EXPECT_TRUE(a.has_first_token());
  a.emitted(2, true, at(9));
  const MethodStats end = a.at_end(at(12));
  EXPECT_DOUBLE_EQ(end.queue_seconds, 2);
  EXPECT_DOUBLE_EQ(end.prefill_seconds, 4);
  EXPECT_DOUBLE_EQ(end.decode_seconds, 5);
}

TEST(SequenceAccounts, APassCountsWithItsLastChunkAndTimeWithEach) {
  SequenceAccounts a(at(0), nullptr);
  a.ran(Role::kLarge, 8, duration(1), 0.25, false);
  a.ran(Role::kLarge, 4, duration(2), 0.5, true);
  a.ran(Role::kSmall, 3, duration(4), 1, true);
  const MethodStats end = a.at_end(at(9));
  EXPECT_EQ(end.large_passes, 1);
  EXPECT_EQ(end.small_passes, 1);
  EXPECT_DOUBLE_EQ(end.large_seconds, 3);
  EXPECT_DOUBLE_EQ(end.small_seconds, 4);
  EXPECT_DOUBLE_EQ(end.share_seconds, 0.25 + 1 + 4);
  EXPECT_DOUBLE_EQ(end.mean_batch_rows, 5);
}

TEST(SequenceAccounts, ARequestHasOneFirstToken) {
  Series series;
  SequenceAccounts first(at(0), &series), second(at(0), &series);
  first.emitted(1, /*first_choice=*/true, at(1));
  second.emitted(1, /*first_choice=*/false, at(2));
  EXPECT_EQ(series.time_to_first_token.total(), 1);
  EXPECT_EQ(series.inter_token_latency.total(), 0);
  second.emitted(3, /*first_choice=*/false, at(3));
  EXPECT_EQ(series.inter_token_latency.total(), 1);
  EXPECT_EQ(series.generated_tokens.value(), 5);
}

}  // namespace
}  // namespace tandem
