#include "engine/sampling/value_store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

ValueRef ref(TicketId ticket, int out) {
  ValueRef r;
  r.ticket = ticket;
  r.out = out;
  return r;
}

TEST(ValueStore, PicksByOutputAndRank) {
  ValueStore store;
  EXPECT_EQ(store.size(), 0u);
  store.put_picks(7, {{0, 11, {}}, {1, -1, {21, 22}}});
  store.put_picks(7, {{4, 14, {41}}});  // a later chunk of the same pass
  EXPECT_EQ(store.size(), 1u);
  EXPECT_EQ(store.pick(ref(7, 0), kDrawn).value(), 11);
  EXPECT_EQ(store.pick(ref(7, 1), 0).value(), 21);
  EXPECT_EQ(store.pick(ref(7, 1), 1).value(), 22);
  EXPECT_EQ(store.pick(ref(7, 4), kDrawn).value(), 14);
  store.put_picks(7, {{4, 15, {}}});
  EXPECT_EQ(store.pick(ref(7, 4), kDrawn).value(), 15);
}

TEST(ValueStore, BadReferencesAreInternalErrors) {
  ValueStore store;
  store.put_picks(7, {{0, 11, {}}, {1, -1, {21, 22}}});
  store.put_dist(7, 0, {1.0f});
  EXPECT_EQ(store.pick(ref(8, 0), kDrawn).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(store.pick(ref(7, 2), kDrawn).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(store.pick(ref(7, 1), kDrawn).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(store.pick(ref(7, 1), 2).status().message(),
            "pass 7 shares no token of rank 2 of its output 1");
  EXPECT_EQ(store.dist(7, 1).status().message(), "pass 7 kept no distribution of its output 1");
  EXPECT_EQ(store.dist(9, 0).status().code(), absl::StatusCode::kInternal);
}

TEST(ValueStore, ForgetKeepsDistributionsInUse) {
  ValueStore store;
  store.forget(3);
  store.put_dist(3, 0, {0.25f, 0.75f});
  store.put_dist(3, 2, {1.0f, 0.0f});
  store.put_picks(4, {{0, 1, {}}});
  EXPECT_EQ(store.size(), 2u);
  const auto held = store.dist(3, 0).value();
  EXPECT_EQ((*store.dist(3, 2).value())[0], 1.0f);
  const std::vector<TicketId> tickets = {3, 5};
  store.forget(tickets);
  EXPECT_EQ(store.size(), 1u);
  EXPECT_FALSE(store.dist(3, 0).ok());
  EXPECT_EQ(*held, (Distribution{0.25f, 0.75f}));
  store.forget(4);
  EXPECT_EQ(store.size(), 0u);
}

// Threads of several devices put, read and forget concurrently, for the sanitizers.
TEST(ValueStore, ManyThreads) {
  ValueStore store;
  store.put_picks(1, {{0, 99, {}}});  // read by all
  constexpr int kThreads = 8;
  constexpr int kTickets = 500;
  std::vector<std::thread> threads;
  std::vector<int> failures(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTickets; ++i) {
        const auto ticket = static_cast<TicketId>(2 + t * kTickets + i);
        store.put_picks(ticket, {{0, t, {i}}});
        store.put_dist(ticket, 0, Distribution(4, static_cast<float>(t)));
        const bool ok = store.pick(ref(ticket, 0), kDrawn).value() == t &&
                        store.pick(ref(ticket, 0), 0).value() == i &&
                        (*store.dist(ticket, 0).value())[3] == static_cast<float>(t) &&
                        store.pick(ref(1, 0), kDrawn).value() == 99;
        failures[static_cast<size_t>(t)] += ok ? 0 : 1;
        if (i % 2 == 0) store.forget(ticket);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int f : failures) EXPECT_EQ(f, 0);
  EXPECT_EQ(store.size(), 1u + kThreads * kTickets / 2);
}

}  // namespace
}  // namespace tandem
