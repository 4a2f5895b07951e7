#include "engine/base/memory_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Charge = MemoryAccount::Charge;

TEST(MemoryAccount, BoundsTheTotal) {
  MemoryAccount account(1000);
  const auto ann = account.charge("ann", "10.0.0.1", 500);
  ASSERT_TRUE(ann.ok());
  const auto bob = account.charge("bob", "10.0.0.2", 400);
  ASSERT_TRUE(bob.ok());
  const absl::Status eve = account.charge("eve", "10.0.0.3", 101).status();
  EXPECT_EQ(eve.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(eve.message(),
            "memory: 900 bytes are in use, and 101 more are needed; allowed: 1000 "
            "(server.memory_bytes for calls); try again later");
  EXPECT_EQ(eve.GetPayload(kReasonPayload), "MEMORY_FULL");
  EXPECT_EQ(eve.GetPayload(kRetryPayload), "1000");
  EXPECT_TRUE(account.charge("eve", "10.0.0.3", 100).ok());
  EXPECT_EQ(account.used(), 900);
  EXPECT_EQ(account.peak(), 1000);
  EXPECT_EQ(account.refused(), 1);
  EXPECT_EQ(account.charges(), 2);
}

TEST(MemoryAccount, OneClientHoldsAtMostHalf) {
  MemoryAccount account(1000);
  const auto first = account.charge("ann", "10.0.0.1", 300);
  const auto other_host = account.charge("ann", "10.0.0.2", 200);
  ASSERT_TRUE(first.ok() && other_host.ok());
  EXPECT_THAT(account.charge("ann", "10.0.0.3", 1).status().message(),
              HasSubstr("500 bytes are in use by client \"ann\", and 1 more are needed; allowed: "
                        "500 (half of server.memory_bytes for calls)"));
  EXPECT_TRUE(account.charge("bob", "10.0.0.1", 450).ok());
}

TEST(MemoryAccount, OneHostHoldsAtMostThreeQuarters) {
  MemoryAccount account(1000);
  const auto ann = account.charge("ann", "10.0.0.1", 400);
  const auto bob = account.charge("bob", "10.0.0.1", 350);
  ASSERT_TRUE(ann.ok() && bob.ok());
  EXPECT_THAT(account.charge("eve", "10.0.0.1", 1).status().message(),
              HasSubstr("by host \"10.0.0.1\", and 1 more are needed; allowed: 750"));
  EXPECT_TRUE(account.charge("eve", "", 250).ok());       // a unix socket
  EXPECT_TRUE(account.charge("", "10.0.0.2", 250).ok());  // a client that is not yet known
}

TEST(MemoryAccount, ARefusedResizeChangesNothing) {
  MemoryAccount account(1000);
  auto charge = account.charge("ann", "h", 100);
  ASSERT_TRUE(charge.ok());
  EXPECT_EQ(charge->try_resize(501).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(charge->bytes(), 100);
  EXPECT_EQ(account.used(), 100);
  EXPECT_TRUE(charge->try_resize(500).ok());
  EXPECT_TRUE(charge->try_resize(10).ok());
  EXPECT_EQ(account.used(), 10);
}

TEST(MemoryAccount, AnUncheckedResizeStopsLaterCharges) {
  MemoryAccount account(1000);
  auto charge = account.charge("ann", "h", 0);
  ASSERT_TRUE(charge.ok());
  charge->resize(2000);
  EXPECT_EQ(account.used(), 2000);
  EXPECT_FALSE(account.charge("bob", "i", 1).ok());
  EXPECT_TRUE(charge->try_resize(1999).ok());  // shrinks, still above the limit
  charge->resize(0);
  EXPECT_TRUE(account.charge("bob", "i", 1).ok());
}

TEST(MemoryAccount, HugeSizesDoNotOverflow) {
  MemoryAccount account(1000);
  auto charge = account.charge("ann", "h", 400);
  ASSERT_TRUE(charge.ok());
  EXPECT_FALSE(account.charge("bob", "h", std::numeric_limits<int64_t>::max()).ok());
  EXPECT_FALSE(charge->try_resize(std::numeric_limits<int64_t>::max()).ok());
  EXPECT_EQ(account.used(), 400);
}

TEST(MemoryAccount, AMovedChargeIsReleasedOnce) {
  MemoryAccount account(1000);
  Charge held;
  {
    auto charge = account.charge("ann", "h", 100);
    ASSERT_TRUE(charge.ok());
    held = *std::move(charge);
    held = Charge(std::move(held));
  }
  EXPECT_EQ(account.used(), 100);
  held.release();
  held.resize(50);  // no effect
  held.release();
  EXPECT_EQ(account.used(), 0);
  EXPECT_EQ(account.charges(), 0);
}

TEST(MemoryAccount, ADefaultChargeIsNotCounted) {
  Charge charge;
  EXPECT_TRUE(charge.try_resize(int64_t{1} << 60).ok());
  EXPECT_EQ(charge.bytes(), 0);
}

TEST(MemoryAccountDeathTest, AChargeThatOutlivesTheAccountIsABug) {
  EXPECT_DEATH(
      {
        auto* account = new MemoryAccount(1000);
        auto* charge = new Charge(*account->charge("ann", "h", 1));
        static_cast<void>(charge);
        delete account;
      },
      "charges\\(\\) == 0");
}

// Threads charge, resize and release at random; the account must end balanced and within its total.
TEST(MemoryAccount, StaysBalancedUnderConcurrentUse) {
  constexpr int64_t kTotal = 10000;
  MemoryAccount account(kTotal);
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&account, thread] {
      std::mt19937 random(thread);
      std::vector<Charge> held;
      for (int step = 0; step < 2000; ++step) {
        const auto name = [&] { return std::string(1, static_cast<char>('a' + random() % 3)); };
        if (auto charge = account.charge(name(), name(), random() % 1000); charge.ok()) {
          held.push_back(*std::move(charge));
        }
        if (!held.empty()) {
          const size_t at = random() % held.size();
          if (random() % 2 == 0) {
            static_cast<void>(held[at].try_resize(random() % 1000));
          } else {
            held[at] = std::move(held.back());
            held.pop_back();
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.used(), 0);
  EXPECT_EQ(account.charges(), 0);
  EXPECT_LE(account.peak(), kTotal);
  EXPECT_GT(account.refused(), 0);
}

}  // namespace
}  // namespace tandem
