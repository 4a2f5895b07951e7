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

}  // namespace
}  // namespace tandem
