#include "engine/decode/draft_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace tandem {
namespace {

TEST(DraftIds, LeaveMoreThanARequestBans) {
  constexpr float kBanned = -std::numeric_limits<float>::infinity();
  Warp warp;
  EXPECT_EQ(draft_ids(warp, 0), 0) << "all";
  EXPECT_EQ(draft_ids(warp, 7), 7);
  Processors processors;
  processors.bias = {{0, kBanned}, {1, kBanned}, {2, kBanned}};
  processors.ends = {3};
  warp.processors = std::make_shared<const Processors>(processors);
  EXPECT_EQ(draft_ids(warp, 4), 5) << "4 is none of those";
  EXPECT_EQ(draft_ids(warp, 9), 9);
  warp.vocab = 8;  // what the models have in common
  EXPECT_EQ(draft_ids(warp, 9), 8);
  EXPECT_EQ(draft_ids(warp, 0), 8);
}

using Ids = std::vector<Token>;

Ids more_of(const Warp& warp) { return warp.more_ids ? *warp.more_ids : Ids(); }

TEST(DraftWarp, AddsTheIdsOfTheText) {
  Warp warp;
  warp.vocab = 90;
  warp.temperature = 0.5F;
  DraftWarp drafts(warp, 10, true);
  EXPECT_EQ(more_of(drafts.behind({1, 9})), Ids{});
  EXPECT_EQ(more_of(drafts.behind({1, 9, 40, 10, 40, -1, 90, 95})), (Ids{10, 40}))
      << "ids below 90 alone are tokens of both models";
  const Warp before = drafts.behind({1, 9, 40, 10, 40, -1, 90, 95});
  const Warp& after = drafts.behind({1, 9, 40, 10, 40, -1, 90, 95, 10, 3, 12});
  EXPECT_EQ(more_of(after), (Ids{10, 12, 40}));
  EXPECT_EQ(more_of(before), (Ids{10, 40})) << "passes under way keep theirs";
  EXPECT_EQ(after.vocab, 10);
  EXPECT_EQ(after.temperature, 0.5F);
}

TEST(DraftWarp, AddsNothingToAllIdsOrWhereItIsOff) {
  DraftWarp all(Warp(), 0, true), off(Warp(), 10, false);
  EXPECT_EQ(more_of(all.behind({1, 40})), Ids{});
  EXPECT_EQ(more_of(off.behind({1, 40})), Ids{});
  EXPECT_EQ(all.behind({1, 40}).vocab, 0);
  EXPECT_EQ(off.behind({1, 40}).vocab, 10);
}

// Of more ids than kMost, those that occurred last, however the text came.
TEST(DraftWarp, RetainsTheIdsThatOccurredLast) {
  std::mt19937 rng(3);
  for (int i = 0; i < 20; ++i) {
    DraftWarp drafts(Warp(), 100, true);
    Ids text, expected;
    for (int round = 0; round < 8; ++round) {
      for (size_t n = rng() % 200; n > 0; --n) text.push_back(Token(rng() % 700));
      expected.clear();
      for (auto t = text.rbegin(); t != text.rend() && expected.size() < DraftWarp::kMost; ++t) {
        if (*t >= 100 && std::ranges::find(expected, *t) == expected.end()) expected.push_back(*t);
      }
      std::ranges::sort(expected);
      ASSERT_EQ(more_of(drafts.behind(text)), expected);
    }
    EXPECT_EQ(expected.size(), DraftWarp::kMost);
    DraftWarp at_once(Warp(), 100, true);
    EXPECT_EQ(more_of(at_once.behind(text)), expected) << "as after a preemption";
  }
}

}  // namespace
}  // namespace tandem
