#include "engine/decode/ngram_index.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/reference/speculative.h"

namespace tandem {
namespace {

using Tokens = std::vector<Token>;

Tokens propose(const Tokens& text, int n, int longest = 3) {
  return NgramIndex(longest).propose(text, n);
}

TEST(NgramIndex, CopiesWhatFollowedTheLongestSuffix) {
  //            0  1  2  3  4  5  6  7  8  9
  const Tokens text = {1, 2, 3, 4, 9, 2, 3, 5, 2, 3};
  EXPECT_EQ(propose(text, 2), (Tokens{5, 2})) << "the most recent (2, 3)";
  EXPECT_EQ(propose(text, 2, 1), (Tokens{5, 2}));
  EXPECT_EQ(propose({1, 2, 3, 7, 8, 2, 3, 9, 1, 2, 3}, 2), (Tokens{7, 8}))
      << "(1, 2, 3) is older than (2, 3), and longer";
}

TEST(NgramIndex, NothingBefore) {
  EXPECT_TRUE(propose({}, 3).empty());
  EXPECT_TRUE(propose({1}, 3).empty());
  EXPECT_TRUE(propose({1, 2, 3}, 3).empty());
  EXPECT_TRUE(propose({1, 1}, 0).empty());
}

TEST(NgramIndex, FollowsALoop) {
  EXPECT_EQ(propose({7, 7}, 4), (Tokens{7, 7, 7, 7}));
  EXPECT_EQ(propose({5, 1, 2, 3, 1, 2}, 7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
}

TEST(NgramIndex, EqualsASearchAsTheTextGrows) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 3000; ++i) {
    const int longest = 1 + static_cast<int>(rng() % kMaxNgram);
    const uint64_t vocab = 1 + rng() % 6;
    NgramIndex index(longest);
    Tokens text;
    while (text.size() < 40) {
      for (uint64_t n = rng() % 4; n > 0; --n) text.push_back(static_cast<Token>(rng() % vocab));
      const int n = static_cast<int>(rng() % 7);
      ASSERT_EQ(index.propose(text, n), reference::prompt_lookup(text, longest, n));
    }
  }
}

// A long prompt is indexed in slices, its end first, so that the loop serves other requests
// between.
TEST(Ngram, ARoundEntersNoMoreThanASlice) {
  std::mt19937_64 rng(2);
  Tokens text;
  for (int i = 0; i < 10'000; ++i) text.push_back(static_cast<Token>(rng() % 500));
  NgramIndex index(3);
  size_t rounds = 0;
  for (size_t before = 0; before < text.size(); ++rounds) {
    const size_t added = rounds > 0 ? 1 : 0;
    if (rounds > 0) text.push_back(static_cast<Token>(rng() % 500));
    const Tokens drafts = index.propose(text, 2);
    const size_t entered = index.entered() - before;
    EXPECT_LE(entered, NgramIndex::kSlice + added);
    ASSERT_GE(entered, std::min(NgramIndex::kSlice, text.size() - before));
    before = index.entered();
    const Tokens known(text.end() - static_cast<ptrdiff_t>(before), text.end());
    if (const Tokens of_known = reference::prompt_lookup(known, 3, 2); !of_known.empty()) {
      EXPECT_EQ(drafts, of_known) << "round " << rounds;
    }
  }
  EXPECT_EQ(rounds, 10'000 / NgramIndex::kSlice + 1);
}

// 0 or more repeats of the same: a lookup never takes longer than what is new of the text.
TEST(NgramIndex, SameTextSameAnswer) {
  NgramIndex index(3);
  const Tokens text = {1, 2, 1};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(index.propose(text, 3), (Tokens{2, 1, 2}));
}

}  // namespace
}  // namespace tandem
