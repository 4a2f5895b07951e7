#include "engine/backend/scripted/script.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace tandem {
namespace {

constexpr int kPositions = 20000;

double share(const Script& script, bool (ScriptedText::*is)(int) const) {
  const ScriptedText text(script, 7, 0);
  int count = 0;
  for (int i = 0; i < kPositions; ++i) count += (text.*is)(i) ? 1 : 0;
  return static_cast<double>(count) / kPositions;
}

TEST(Script, ModelsAgreeAsOftenAsSaid) {
  for (const double agreement : {0.0, 0.1, 0.7, 0.9, 1.0}) {
    const Script script{.seed = 3, .vocab_size = 50, .agreement = agreement};
    EXPECT_NEAR(share(script, &ScriptedText::agree), agreement, 0.01);
    const ScriptedText text(script, 7, 0);
    for (int i = 0; i < 1000; ++i) {
      EXPECT_EQ(text.small(i) == text.large(i), text.agree(i)) << i;
      EXPECT_GE(text.small(i), 0);
      EXPECT_LT(text.small(i), 50);
      EXPECT_LT(text.large(i), 50);
    }
  }
}

TEST(Script, TwoTokensAreEnoughToDisagree) {
  const ScriptedText text({.vocab_size = 2, .agreement = 0}, 1, 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(text.small(i), 1 - text.large(i));
}

TEST(Script, SmallIsUnsureOnlyWhereItDisagrees) {
  const Script script{.vocab_size = 50, .agreement = 0.6, .foresight = 0.25};
  const ScriptedText text(script, 7, 0);
  for (int i = 0; i < 1000; ++i) {
    if (text.agree(i)) EXPECT_TRUE(text.sure(i));
  }
  EXPECT_NEAR(share(script, &ScriptedText::sure), 1 - 0.4 * 0.25, 0.01);
}

TEST(Script, TextsOfRequestsAndChoicesDiffer) {
  const Script script{.vocab_size = 1000, .agreement = 0.5};
  std::set<std::vector<Token>> texts;
  for (const uint64_t seed : {1, 2}) {
    for (const uint32_t choice : {0, 1}) {
      const ScriptedText text(script, seed, choice);
      std::vector<Token> tokens;
      for (int i = 0; i < 8; ++i) tokens.push_back(text.large(i));
      EXPECT_TRUE(texts.insert(tokens).second);
    }
  }
}

TEST(Script, MasksAreRightAsOftenAsSaid) {
  const Script script{.vocab_size = 50, .masks = {{0.5, 0.2}, {0.3, 0, 0.1}}};
  const ScriptedText text(script, 7, 0);
  std::vector<std::vector<int>> right(3, std::vector<int>(4));
  int together = 0;
  for (int i = 0; i < kPositions; ++i) {
    bool both = true;
    for (int mask = 0; mask < 3; ++mask) {
      const std::vector<Token> best = text.candidates(mask, i, 4);
      ASSERT_EQ(std::set<Token>(best.begin(), best.end()).size(), 4U);
      for (size_t rank = 0; rank < 4; ++rank) {
        right[static_cast<size_t>(mask)][rank] += best[rank] == text.large(i);
      }
      both = both && (mask == 2 || best[0] == text.large(i));
    }
    together += both;
  }
  const double expected[3][4] = {{0.5, 0.2, 0, 0}, {0.3, 0, 0.1, 0}, {0, 0, 0, 0}};
  for (size_t mask = 0; mask < 3; ++mask) {
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_NEAR(static_cast<double>(right[mask][rank]) / kPositions, expected[mask][rank], 0.015);
    }
  }
  EXPECT_NEAR(static_cast<double>(together) / kPositions, 0.15, 0.015) << "each by itself";
}

TEST(Script, EarlyLayersAreRightAsOftenAsSaid) {
  const Script script{.vocab_size = 50, .agreement = 0, .early = {0.4, 0.2, 0.1}};
  const ScriptedText text(script, 7, 0);
  std::vector<int> right(4);
  for (int i = 0; i < kPositions; ++i) {
    const std::vector<Token> best = text.early(i, 4);
    ASSERT_EQ(std::set<Token>(best.begin(), best.end()).size(), 4U);
    for (size_t rank = 0; rank < 4; ++rank) right[rank] += best[rank] == text.large(i);
  }
  const double expected[] = {0.4, 0.2, 0.1, 0};
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(static_cast<double>(right[rank]) / kPositions, expected[rank], 0.015) << rank;
  }
}

}  // namespace
}  // namespace tandem
