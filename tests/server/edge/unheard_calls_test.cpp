#include "server/edge/unheard_calls.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(UnheardCalls, BoundsEachConnectionAndAllTogether) {
  const VirtualClock clock;
  UnheardCalls calls({/*total=*/5, /*per_connection=*/2}, &clock);
  const int a = 0, b = 0, c = 0;
  for (const int* connection : {&a, &b, &c}) {
    EXPECT_TRUE(calls.made(connection));
    if (connection == &c) break;
    EXPECT_TRUE(calls.made(connection));
    EXPECT_FALSE(calls.made(connection)) << "a third";
  }
  EXPECT_FALSE(calls.made(&c)) << "a sixth of all";
  EXPECT_EQ(calls.unheard(), 5);
  EXPECT_EQ(calls.refused(), 3);
  calls.heard(&a);
  EXPECT_TRUE(calls.made(&c));
  EXPECT_FALSE(calls.made(&a)) << "its place is taken";
}

TEST(UnheardCalls, NobodyIsShutOutByOthers) {
  const VirtualClock clock;
  UnheardCalls calls({/*total=*/6, /*per_connection=*/4, /*its_own=*/2, /*reserve=*/2}, &clock);
  const int a = 0, b = 0, c = 0;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(calls.made(&a));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(calls.made(&b));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(calls.made(&c)) << "whatever others have";
  for (const int* connection : {&a, &b, &c}) EXPECT_FALSE(calls.made(connection));
  EXPECT_EQ(calls.unheard(), 8);
  calls.heard(&c);
  EXPECT_TRUE(calls.made(&c));
  EXPECT_FALSE(calls.made(&c));
}

TEST(UnheardCalls, ManyConnectionsWithPlacesOfTheirOwnMeetTheCeiling) {
  const VirtualClock clock;
  UnheardCalls calls({/*total=*/10, /*per_connection=*/10, /*its_own=*/8, /*reserve=*/20}, &clock);
  EXPECT_EQ(calls.bounds().ceiling(), 30);
  const std::vector<int> connections(100);
  int64_t made = 0;
  for (const int& connection : connections) {
    for (int i = 0; i < 10; ++i) made += calls.made(&connection) ? 1 : 0;
  }
  EXPECT_EQ(made, 30);
  EXPECT_EQ(calls.unheard(), 30);
  EXPECT_EQ(calls.refused(), 970);
  // One that is free again is for whoever has few.
  calls.heard(&connections[0]);
  EXPECT_FALSE(calls.made(&connections[0])) << "it has more than its own";
  EXPECT_TRUE(calls.made(&connections[99]));
  EXPECT_FALSE(calls.made(&connections[98]));
}

TEST(UnheardCalls, WhatWasRefusedIsNotHeardOf) {
  const VirtualClock clock;
  UnheardCalls calls({/*total=*/0, /*per_connection=*/1}, &clock);
  const int connection = 0;
  EXPECT_FALSE(calls.made(&connection));
  calls.heard(&connection);  // of a connection without calls
  EXPECT_EQ(calls.unheard(), 0);
}

// A call that ends inside gRPC before a thread takes it is told to nobody; its place comes back.
TEST(UnheardCalls, PlacesOfCallsThatAreNeverHeardOfComeBack) {
  VirtualClock clock;
  UnheardCalls calls({/*total=*/3, /*per_connection=*/2}, &clock);
  const int a = 0, b = 0;
  EXPECT_TRUE(calls.made(&a));
  EXPECT_TRUE(calls.made(&a));
  clock.advance(UnheardCalls::kGivenUp);
  EXPECT_FALSE(calls.made(&a)) << "they may still be heard of";
  EXPECT_TRUE(calls.made(&b));
  calls.heard(&a);
  clock.advance(UnheardCalls::kGivenUp);
  EXPECT_TRUE(calls.made(&b));
  EXPECT_EQ(calls.unheard(), 2);  // both of b; the other one of a was given up
  EXPECT_EQ(calls.given_up(), 1);
  calls.heard(&a);  // too late, and of nobody
  EXPECT_EQ(calls.unheard(), 2);
  clock.advance(2 * UnheardCalls::kGivenUp);
  EXPECT_EQ(calls.unheard(), 0) << "whoever looks";
  EXPECT_TRUE(calls.made(&b));
  clock.advance(10 * UnheardCalls::kGivenUp);
  EXPECT_TRUE(calls.made(&a));
  EXPECT_EQ(calls.unheard(), 1);
  EXPECT_EQ(calls.given_up(), 4);
}

TEST(UnheardCalls, ThreadsMayMeet) {
  const VirtualClock clock;
  UnheardCalls calls({1000, 1000}, &clock);
  const int connection = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        EXPECT_TRUE(calls.made(&connection));
        calls.heard(&connection);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(calls.unheard(), 0);
  EXPECT_EQ(calls.refused(), 0);
}

}  // namespace
}  // namespace tandem
