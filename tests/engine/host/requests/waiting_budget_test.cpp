#include "engine/host/requests/waiting_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tandem {
namespace {

using ::testing::HasSubstr;

LimitsConfig limits(int64_t bytes, int requests) {
  LimitsConfig limits;
  limits.max_waiting_bytes = bytes;
  limits.max_waiting = 2 * requests;
  return limits;
}

TEST(WaitingBudget, BoundsMemoryOfAllAndHalfOfItForOne) {
  Metrics metrics;
  WaitingBudget budget(limits(1000, 100), &metrics);
  RejectReason reason{};
  auto first = budget.reserve("ann", 400, &reason);
  ASSERT_TRUE(first.ok());
  const auto more = budget.reserve("ann", 101, &reason);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(), HasSubstr("400 bytes of client \"ann\" wait"));
  EXPECT_EQ(reason, RejectReason::kQueueClient);

  auto second = budget.reserve("bob", 500, &reason);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(metrics.waiting_bytes.value(), 900);
  EXPECT_THAT(budget.reserve("eve", 101, &reason).status().message(),
              HasSubstr("900 bytes wait, and this request has 101; allowed: 1000"));
  EXPECT_EQ(reason, RejectReason::kQueueBytes);

  second->resize(100);                                    // tokenized
  EXPECT_TRUE(budget.reserve("eve", 101, &reason).ok());  // and given back at once
  first->release();
  EXPECT_EQ(metrics.waiting_bytes.value(), 100);
  {
    const WaitingBudget::Share moved = *std::move(second);
  }
  EXPECT_EQ(metrics.waiting_bytes.value(), 0);
}

TEST(WaitingBudget, BoundsAClientsRequests) {
  Metrics metrics;
  WaitingBudget budget(limits(1 << 20, 3), &metrics);
  RejectReason reason{};
  std::vector<WaitingBudget::Share> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(*budget.reserve("ann", 1, &reason));
  EXPECT_THAT(budget.reserve("ann", 1, &reason).status().message(),
              HasSubstr("3 requests of client \"ann\" wait; allowed: 3"));
  EXPECT_EQ(reason, RejectReason::kQueueClient);
  EXPECT_TRUE(budget.reserve("bob", 1, &reason).ok());
  parts.pop_back();
  EXPECT_TRUE(budget.reserve("ann", 1, &reason).ok());
}

}  // namespace
}  // namespace tandem
