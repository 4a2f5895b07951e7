#include "engine/async/ready_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

using Queue = ReadyQueue<uint64_t>;

std::vector<uint64_t> drain(Queue& q) {
  std::vector<uint64_t> order;
  while (const auto e = q.pop()) order.push_back(e->owner);
  return order;
}

Queue filled(std::optional<uint64_t> seed) {
  Queue q;
  if (seed) q.shuffle(*seed);
  for (uint64_t i = 0; i < 8; ++i) q.push({}, i);
  return q;
}

TEST(ReadyQueue, FirstInFirstOut) {
  Queue q = filled(std::nullopt);
  EXPECT_EQ(q.size(), 8U);
  EXPECT_EQ(drain(q), (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(q.empty());
}

TEST(ReadyQueue, ASeedGivesAnOrderThatCanBeReplayed) {
  std::vector<std::vector<uint64_t>> orders;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Queue a = filled(seed), b = filled(seed);
    orders.push_back(drain(a));
    EXPECT_EQ(orders.back(), drain(b));
    auto sorted = orders.back();
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST(ReadyQueue, PurgeForgetsAnOwner) {
  Queue q;
  for (const uint64_t owner : {1, 2, 1, 3, 1}) q.push({}, owner);
  q.purge(1);
  EXPECT_EQ(drain(q), (std::vector<uint64_t>{2, 3}));
}

TEST(ReadyQueue, PurgeBetweenPops) {
  Queue q = filled(std::nullopt);
  EXPECT_EQ(q.pop()->owner, 0U);
  EXPECT_EQ(q.pop()->owner, 1U);
  q.purge(1);  // gone already
  q.purge(5);
  q.push({}, 9);
  EXPECT_EQ(q.size(), 6U);
  EXPECT_EQ(drain(q), (std::vector<uint64_t>{2, 3, 4, 6, 7, 9}));
  q.push({}, 3);
  EXPECT_EQ(drain(q), (std::vector<uint64_t>{3}));
}

}  // namespace
}  // namespace tandem
