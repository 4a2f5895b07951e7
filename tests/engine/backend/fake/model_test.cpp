#include "engine/backend/fake/model.h"

#include <gtest/gtest.h>

#include <set>

namespace tandem::fake {
namespace {

FakeModelConfig config() {
  FakeModelConfig c;
  c.vocab_size = 50;
  return c;
}

TEST(FakeModel, EverythingSeenMatters) {
  const auto base = logits_after(config(), std::vector<Token>{1, 2, 3}, 4);
  EXPECT_EQ(base, logits_after(config(), std::vector<Token>{1, 2, 3}, 4));
  EXPECT_NE(base, logits_after(config(), std::vector<Token>{1, 2, 4}, 4));
  EXPECT_NE(base, logits_after(config(), std::vector<Token>{2, 1, 3}, 4)) << "order";
  EXPECT_NE(base, logits_after(config(), std::vector<Token>{1, 2, 3}, 3)) << "layers";
  EXPECT_NE(base, logits_after(config(), std::vector<Token>{1, 2, 3}, 4, 2)) << "window";
  FakeModelConfig other = config();
  other.seed = 2;
  EXPECT_NE(base, logits_after(other, std::vector<Token>{1, 2, 3}, 4));
}

TEST(FakeModel, AdaptersAnswerDifferently) {
  const std::vector<Token> tokens{1, 2, 3};
  std::set<std::vector<float>> answers;
  for (const LoraId lora : {LoraId(), LoraId(0), LoraId(1), LoraId(2)}) {
    answers.insert(logits_after(with_lora(config(), lora), tokens, 4));
  }
  EXPECT_EQ(answers.size(), 4U);
  EXPECT_EQ(logits_after(with_lora(config(), LoraId()), tokens, 4),
            logits_after(config(), tokens, 4));
}

TEST(FakeModel, MasksAreNoTokens) {
  std::set<uint64_t> inputs;
  for (int i = 0; i < 100; ++i) {
    inputs.insert(token_input(i));
    for (int a = 0; a < 3; ++a) inputs.insert(mask_input(AdapterId(a), i));
  }
  EXPECT_EQ(inputs.size(), 400U);
}

TEST(FakeModel, AByteVocabularyWritesReadableText) {
  FakeModelConfig bytes;
  for (const Token t : greedy(bytes, {72, 105}, 200)) {
    EXPECT_TRUE((t >= 32 && t < 127) || t == 256) << t;
  }
}

TEST(FakeModel, AScriptAnswersTurnByTurn) {
  FakeModelConfig model;
  model.answers = {"one", "two"};
  model.answer_after = "A:";
  const auto next = [&](const std::string& text) {
    std::vector<Token> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return fake::scripted(model, tokens);
  };
  EXPECT_EQ(next("Q A:"), 'o');
  EXPECT_EQ(next("Q A:o"), 'n');
  EXPECT_EQ(next("Q A:one"), 256) << "the text ends";
  EXPECT_EQ(next("Q A:one Q A:t"), 'w') << "the second turn";
  EXPECT_EQ(next("Q A:one Q A:two Q A:"), -1) << "no third answer";
  EXPECT_EQ(next("Q"), -1);
  model.answers.clear();
  EXPECT_EQ(next("Q A:"), -1);
}

TEST(FakeModel, GreedyFeedsItself) {
  const auto six = greedy(config(), {1, 2}, 6);
  auto longer = std::vector<Token>{1, 2, six[0], six[1]};
  EXPECT_EQ(greedy(config(), longer, 4), std::vector<Token>(six.begin() + 2, six.end()));
}

}  // namespace
}  // namespace tandem::fake
