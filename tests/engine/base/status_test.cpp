#include "engine/base/status.h"

#include <gtest/gtest.h>

#include "engine/base/clock.h"
#include "engine/base/ids.h"

namespace tandem {
namespace {

absl::StatusOr<int> half(int n) {
  if (n % 2 != 0) return out_of_range("n", n, "an even number");
  return n / 2;
}

absl::Status quarter(int n, int* out) {
  TANDEM_ASSIGN_OR_RETURN(const int h, half(n));
  TANDEM_ASSIGN_OR_RETURN(*out, half(h));
  TANDEM_RETURN_IF_ERROR(absl::OkStatus());
  return absl::OkStatus();
}

TEST(Status, OutOfRangeNamesFieldValueAndRange) {
  EXPECT_EQ(half(3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(half(3).status().message(), "n: 3; allowed: an even number");
}

TEST(Status, MacrosStopAtTheFirstError) {
  int out = -1;
  EXPECT_TRUE(quarter(12, &out).ok());
  EXPECT_EQ(out, 3);
  EXPECT_EQ(quarter(6, &out).message(), "n: 3; allowed: an even number");
  EXPECT_EQ(out, 3);
}

TEST(Status, AnnotateKeepsTheCodeAndLeavesOkAlone) {
  EXPECT_EQ(annotate(absl::NotFoundError("gone"), "file"), absl::NotFoundError("file: gone"));
  EXPECT_TRUE(annotate(absl::OkStatus(), "file").ok());
  const absl::Status gone = with_reason(absl::NotFoundError("gone"), "GONE");
  EXPECT_EQ(annotate(gone, "file").GetPayload(kReasonPayload), absl::Cord("GONE"));
}

TEST(StrongId, IsNoneUntilItIsGiven) {
  EXPECT_FALSE(PageId().valid());
  EXPECT_TRUE(PageId(0).valid());
  EXPECT_LT(PageId(1), PageId(2));
}

TEST(VirtualClock, MovesOnlyOnRequest) {
  VirtualClock clock;
  const TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(std::chrono::seconds(2));
  EXPECT_EQ(seconds(clock.now() - start), 2);
  clock.advance_to(start);  // never back
  EXPECT_EQ(seconds(clock.now() - start), 2);
}

}  // namespace
}  // namespace tandem
