#include "server/edge/pending_calls.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(PendingCalls, BoundsEachConnectionAndAllTogether) {
  const VirtualClock clock;
  PendingCalls calls({/*total=*/5, /*per_connection=*/2}, &clock);
  const int a = 0, b = 0, c = 0;
  for (const int* connection : {&a, &b, &c}) {
    EXPECT_TRUE(calls.admit(connection));
    if (connection == &c) break;
    EXPECT_TRUE(calls.admit(connection));
    EXPECT_FALSE(calls.admit(connection)) << "a third";
  }
  EXPECT_FALSE(calls.admit(&c)) << "a sixth of all";
  EXPECT_EQ(calls.pending(), 5);
  EXPECT_EQ(calls.refused(), 3);
  calls.received(&a);
  EXPECT_TRUE(calls.admit(&c));
  EXPECT_FALSE(calls.admit(&a)) << "its place is taken";
}

TEST(PendingCalls, AClientCannotExcludeOthers) {
  const VirtualClock clock;
  PendingCalls calls({/*total=*/6, /*per_connection=*/4, /*reserve_threshold=*/2, /*reserve=*/2},
                     &clock);
  const int a = 0, b = 0, c = 0;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(calls.admit(&a));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(calls.admit(&b));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(calls.admit(&c)) << "whatever others have";
  for (const int* connection : {&a, &b, &c}) EXPECT_FALSE(calls.admit(connection));
  EXPECT_EQ(calls.pending(), 8);
  calls.received(&c);
  EXPECT_TRUE(calls.admit(&c));
  EXPECT_FALSE(calls.admit(&c));
}

TEST(PendingCalls, ManyConnectionsWithPlacesOfTheirOwnMeetTheCeiling) {
  const VirtualClock clock;
  PendingCalls calls({/*total=*/10, /*per_connection=*/10, /*reserve_threshold=*/8, /*reserve=*/20},
                     &clock);
  EXPECT_EQ(calls.bounds().max_total(), 30);
  const std::vector<int> connections(100);
  int64_t made = 0;
  for (const int& connection : connections) {
    for (int i = 0; i < 10; ++i) made += calls.admit(&connection) ? 1 : 0;
  }
  EXPECT_EQ(made, 30);
  EXPECT_EQ(calls.pending(), 30);
  EXPECT_EQ(calls.refused(), 970);
  // A place that becomes free goes to a client with few.
  calls.received(&connections[0]);
  EXPECT_FALSE(calls.admit(&connections[0])) << "it has more than its own";
  EXPECT_TRUE(calls.admit(&connections[99]));
  EXPECT_FALSE(calls.admit(&connections[98]));
}

TEST(PendingCalls, RefusedCallsDoNotReachTheService) {
  const VirtualClock clock;
  PendingCalls calls({/*total=*/0, /*per_connection=*/1}, &clock);
  const int connection = 0;
  EXPECT_FALSE(calls.admit(&connection));
  calls.received(&connection);  // of a connection without calls
  EXPECT_EQ(calls.pending(), 0);
}

// A call that ends inside gRPC before a thread takes it reaches no service; its place is freed.
TEST(PendingCalls, PlacesOfUnseenCallsAreFreed) {
  VirtualClock clock;
  PendingCalls calls({/*total=*/3, /*per_connection=*/2}, &clock);
  const int a = 0, b = 0;
  EXPECT_TRUE(calls.admit(&a));
  EXPECT_TRUE(calls.admit(&a));
  clock.advance(PendingCalls::kExpiry);
  EXPECT_FALSE(calls.admit(&a)) << "they may still be heard of";
  EXPECT_TRUE(calls.admit(&b));
  calls.received(&a);
  clock.advance(PendingCalls::kExpiry);
  EXPECT_TRUE(calls.admit(&b));
  EXPECT_EQ(calls.pending(), 2);  // both of b; the other one of a was given up
  EXPECT_EQ(calls.expired(), 1);
  calls.received(&a);  // too late, and of no known call
  EXPECT_EQ(calls.pending(), 2);
  clock.advance(2 * PendingCalls::kExpiry);
  EXPECT_EQ(calls.pending(), 0) << "pending() removes expired calls";
  EXPECT_TRUE(calls.admit(&b));
  clock.advance(10 * PendingCalls::kExpiry);
  EXPECT_TRUE(calls.admit(&a));
  EXPECT_EQ(calls.pending(), 1);
  EXPECT_EQ(calls.expired(), 4);
}

TEST(PendingCalls, ThreadsMayMeet) {
  const VirtualClock clock;
  PendingCalls calls({1000, 1000}, &clock);
  const int connection = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        EXPECT_TRUE(calls.admit(&connection));
        calls.received(&connection);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(calls.pending(), 0);
  EXPECT_EQ(calls.refused(), 0);
}

}  // namespace
}  // namespace tandem
