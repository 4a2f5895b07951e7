#include "engine/sampling/processors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "engine/sampling/warp.h"
#include "tests/engine/sampling/brute_force.h"

namespace tandem::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TokenCounts counts_of(const std::vector<Token>& path, int prompt_tokens) {
  TokenCounts counts;
  counts.clear(prompt_tokens);
  for (const Token t : path) counts.push(t);
  return counts;
}

std::vector<float> apply(const Processors& p, const std::vector<Token>& path,
                         std::vector<float> logits) {
  const TokenCounts seen = counts_of(path, p.prompt_tokens);
  apply_processors(p, seen, static_cast<int>(path.size()) - 1, logits);
  return logits;
}

// Each processor, in numbers that can be checked by hand.
TEST(Processors, EachByHand) {
  const std::vector<float> logits = {4, -4, 2, 0, 1};
  Processors p;
  p.prompt_tokens = 2;
  const std::vector<Token> path = {0, 1, 1, 2, 2};
  EXPECT_EQ(apply(p, path, logits), logits);

  p.repetition_penalty = 2;  // prompt and output; 0 stays 0
  EXPECT_EQ(apply(p, path, logits), (std::vector<float>{2, -8, 1, 0, 1}));
  EXPECT_EQ(apply(p, {3, 3}, logits), logits);
  p.repetition_penalty = 1;

  p.presence_penalty = 0.5f;  // output only, however often
  EXPECT_EQ(apply(p, path, logits), (std::vector<float>{4, -4.5f, 1.5f, 0, 1}));
  p.presence_penalty = 0;

  p.frequency_penalty = -0.25f;  // each time; may reward
  EXPECT_EQ(apply(p, path, logits), (std::vector<float>{4, -3.75f, 2.5f, 0, 1}));
  p.frequency_penalty = 0;

  p.bias = {{0, -1}, {3, 7}, {4, -kInf}};
  EXPECT_EQ(apply(p, path, logits), (std::vector<float>{3, -4, 2, 7, -kInf}));
  p.bias = {};

  p.ends = {1, 3};
  p.min_new_tokens = 3;
  EXPECT_EQ(apply(p, path, logits), logits);            // three are there
  EXPECT_EQ(apply(p, {0, 1, 1, 2}, logits)[1], -kInf);  // two
  EXPECT_EQ(apply(p, {0, 1, 1, 2}, logits)[3], -kInf);
  EXPECT_EQ(apply(p, {0, 1}, logits)[3], -kInf);  // none
  EXPECT_EQ(apply(p, {0}, logits)[3], -kInf);     // within the prompt
  EXPECT_EQ(apply(p, {0, 1}, logits)[0], 4);
}

// Bias precedes the penalty, as in Transformers: it decides the sign.
TEST(Processors, OrderMatters) {
  Processors p;
  p.bias = {{0, -3}};
  p.repetition_penalty = 2;
  p.presence_penalty = 1;
  p.prompt_tokens = 0;
  EXPECT_EQ(apply(p, {0}, {2, 0})[0], -3);  // (2 - 3) * 2 - 1
}

TEST(Processors, EqualBruteForce) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 3);
  for (int i = 0; i < 4000; ++i) {
    const size_t vocab = 2 + rng() % 60;
    const auto token = [&] { return static_cast<Token>(rng() % vocab); };
    Processors p;
    p.prompt_tokens = static_cast<int>(rng() % 8);
    if (rng() % 2) p.repetition_penalty = 0.5f + static_cast<float>(rng() % 100) / 50;
    if (rng() % 2) p.presence_penalty = static_cast<float>(rng() % 100) / 25 - 2;
    if (rng() % 2) p.frequency_penalty = static_cast<float>(rng() % 100) / 25 - 2;
    std::map<Token, float> bias;
    for (size_t n = rng() % 4; n > 0; --n) bias[token()] = rng() % 3 ? normal(rng) : -kInf;
    p.bias.assign(bias.begin(), bias.end());
    p.min_new_tokens = static_cast<int>(rng() % 6);
    for (size_t n = rng() % 3; n > 0; --n) p.ends.push_back(token());
    std::vector<Token> path(1 + rng() % 20);
    for (Token& t : path) t = rng() % 8 ? token() : -1;
    std::vector<float> logits(vocab);
    for (float& x : logits) x = normal(rng);
    const std::vector<double> expected = testing::processed(p, path, logits);
    const std::vector<float> got = apply(p, path, logits);
    for (size_t v = 0; v < vocab; ++v) {
      ASSERT_TRUE(got[v] == expected[v] || std::abs(got[v] - expected[v]) < 1e-5) << i << " " << v;
    }
  }
}

// Invalid logits of the model are detected, also for banned tokens.
TEST(Processors, BansHideNothing) {
  Processors p;
  p.bias = {{0, -kInf}};
  p.ends = {1};
  p.min_new_tokens = 5;
  for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(scan(apply(p, {}, {bad, 1, 2})).valid);
    EXPECT_FALSE(scan(apply(p, {}, {1, bad, 2})).valid);
  }
  EXPECT_TRUE(scan(apply(p, {}, {1, 1, 2})).valid);
}

// Tokens of other models and of padded embeddings may have no logit.
TEST(Processors, TokensBeyondTheVocabularyAreIgnored) {
  Processors p;
  p.repetition_penalty = 2;
  p.presence_penalty = 1;
  p.bias = {{7, 1}};
  p.ends = {9};
  p.min_new_tokens = 5;
  EXPECT_EQ(apply(p, {8, 1}, {4, 4}), (std::vector<float>{4, 1}));
}

}  // namespace
}  // namespace tandem::sampling
