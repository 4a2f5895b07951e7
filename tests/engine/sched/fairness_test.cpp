#include "engine/sched/fairness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace tandem {
namespace {

FairnessOptions weights(double prompt, double token) {
  FairnessOptions options;
  options.prompt_weight = prompt;
  options.token_weight = token;
  return options;
}

TEST(Ledger, CountsPromptsAndTokensByTheirWeights) {
  FairnessOptions options = weights(1, 2);
  options.client_weights["big"] = 4;
  Ledger ledger(options);
  Account* const a = ledger.open("a");
  Account* const big = ledger.open("big");
  for (Account* c : {a, big}) {
    ledger.admit(c);
    ledger.charge_prompt(c, 10);
    ledger.charge_tokens(c, 3);
  }
  EXPECT_EQ(a->served(), 16);
  EXPECT_EQ(big->served(), 4);
  EXPECT_EQ(a->token_cost(), 2);
  EXPECT_EQ(big->token_cost(), 0.5);
}

TEST(Ledger, RequestsOfAClientShareItsAccount) {
  Ledger ledger({});
  Account* const a = ledger.open("a");
  EXPECT_EQ(ledger.open("a"), a);
  EXPECT_NE(ledger.open("b"), a);
  EXPECT_EQ(ledger.size(), 2U);
}

TEST(Ledger, IdlenessBanksNoCredit) {
  Ledger ledger(weights(1, 1));
  Account* const busy = ledger.open("busy");
  ledger.open("busy");  // one runs, one still waits
  ledger.admit(busy);
  ledger.charge_prompt(busy, 1000);
  EXPECT_EQ(ledger.open("new")->served(), 1000);
}

TEST(Ledger, AClientThatRunsAndWaitsForNothingBanksNoneEither) {
  Ledger ledger(weights(1, 1));
  Account* const slow = ledger.open("slow");
  Account* const busy = ledger.open("busy");
  ledger.open("busy");
  ledger.admit(slow);
  ledger.admit(busy);
  ledger.charge_tokens(slow, 5);
  ledger.charge_tokens(busy, 500);
  EXPECT_EQ(ledger.open("slow")->served(), 500);
  ledger.charge_tokens(busy, 1);
  EXPECT_EQ(ledger.open("slow")->served(), 500) << "it waits already";
}

TEST(Ledger, WithoutWaitersTheLastOneIsTheReference) {
  Ledger ledger(weights(1, 1));
  Account* const a = ledger.open("a");
  ledger.admit(a);
  ledger.charge_prompt(a, 70);
  ledger.open("a");
  ledger.admit(a);
  EXPECT_EQ(ledger.open("b")->served(), 70);
}

TEST(Ledger, ClientsAheadAreRememberedWhileOthersRun) {
  Ledger ledger(weights(1, 1));
  Account* const other = ledger.open("other");
  Account* greedy = ledger.open("greedy");
  ledger.admit(greedy);
  ledger.charge_tokens(greedy, 100);
  ledger.close(greedy, false);
  EXPECT_EQ(ledger.size(), 2U);
  greedy = ledger.open("greedy");
  EXPECT_EQ(greedy->served(), 100) << "coming back does not wash it off";
  ledger.close(greedy, true);
  ledger.charge_tokens(other, 100);  // now nothing of it is left to remember
  ledger.close(ledger.open("greedy"), true);
  EXPECT_EQ(ledger.size(), 1U);
}

TEST(Ledger, MemoryIsBounded) {
  Ledger ledger(weights(1, 1));
  Account* const there = ledger.open("there");
  for (size_t i = 0; i < 3 * Ledger::kRemembered; ++i) {
    Account* const c = ledger.open("c" + std::to_string(i));
    ledger.admit(c);
    ledger.charge_tokens(c, 10);
    ledger.close(c, false);
    ASSERT_LE(ledger.size(), Ledger::kRemembered + 2);
  }
  EXPECT_EQ(ledger.size(), Ledger::kRemembered + 1);
  ledger.close(there, true);
  EXPECT_EQ(ledger.size(), 0U) << "no client is left";
}

TEST(ServiceOrder, TheLeastServedIsFirstWhateverWasCharged) {
  Ledger ledger(weights(1, 1));
  std::mt19937_64 rng(1);
  std::vector<Account*> all;
  ServiceOrder turns;
  for (int i = 0; i < 20; ++i) {
    all.push_back(ledger.open("c" + std::to_string(i)));
    turns.add(all.back());
  }
  for (int i = 0; i < 2000; ++i) {
    ledger.charge_tokens(all[rng() % all.size()], static_cast<int64_t>(rng() % 9));
    Account* const least = *std::min_element(all.begin(), all.end(), [](auto* a, auto* b) {
      return std::pair(a->served(), a->number()) < std::pair(b->served(), b->number());
    });
    ASSERT_EQ(turns.first(), least);
    if (i % 100 == 99) {  // somebody leaves
      const auto gone = all.begin() + static_cast<ptrdiff_t>(rng() % all.size());
      turns.remove(*gone);
      all.erase(gone);
      if (all.empty()) break;
    }
  }
}

}  // namespace
}  // namespace tandem
