#include "engine/sampling/race.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "tests/engine/sampling/statistics.h"
#include "tests/sanitized.h"

namespace tandem::sampling {
namespace {

double u_of(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// The winner by definition, in double precision; -1: too close to decide.
Token winner(const std::vector<float>& weights, RaceKey key) {
  Token first = -1;
  double least = INFINITY, second = INFINITY;
  for (size_t v = 0; v < weights.size(); ++v) {
    if (weights[v] == 0) continue;
    const double e = -std::log1p(-u_of(race_word(key, static_cast<uint32_t>(v))));
    const double arrives = e / double{weights[v]};
    second = std::min(second, std::max(least, arrives));
    if (arrives < least) first = static_cast<Token>(v);
    least = std::min(least, arrives);
  }
  return second < least * (1 + 1e-5) ? -1 : first;
}

std::vector<float> some_weights(size_t vocab, double sharpness, double survive, std::mt19937& rng) {
  std::normal_distribution<double> normal(0, sharpness);
  std::vector<float> w(vocab);
  float most = 0;
  for (float& x : w) {
    const bool left = static_cast<double>(rng() % 1000) < 1000 * survive;
    x = left ? static_cast<float>(std::exp(normal(rng))) : 0;
    most = std::max(most, x);
  }
  for (float& x : w) x = most > 0 ? x / most : 0;
  return w;
}

TEST(Exponential, IsTheLogarithmToThreeUlps) {
  std::mt19937 rng(1);
  std::vector<uint32_t> words = {0,          1,          2,          0x3fffffff, 0x40000000,
                                 0x40000001, 0x4afb0ccd, 0x80000000, 0xffffffff, 0xfffffffe};
  for (int i = 0; i < 10 * test::kDraws; ++i) words.push_back(rng() >> rng() % 32);
  for (int i = 0; i < 10 * test::kDraws; ++i) words.push_back(~(rng() >> rng() % 32));
  double worst = 0;
  for (const uint32_t word : words) {
    const float e = exponential(word);
    ASSERT_GT(e, 0) << word;
    const double exact = -std::log1p(-u_of(word));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(e - exact) / ulp);
  }
  EXPECT_LT(worst, 3);
}

// The bits of numpy for the same operations in the same order.
TEST(Exponential, Goldens) {
  EXPECT_EQ(exponential(0), 0x1p-33F);
  EXPECT_EQ(exponential(0x12345678), 0x1.2e256ap-4F);
  EXPECT_EQ(exponential(0x40000000), 0x1.26962p-2F);
  EXPECT_EQ(exponential(0x80000000), 0x1.62e43p-1F);
  EXPECT_EQ(exponential(0xdeadbeef), 0x1.04fd5p+1F);
  EXPECT_EQ(exponential(0xffffffff), 0x1.6dfb52p+4F);
}

TEST(Race, DrawsTheFirstToArrive) {
  std::mt19937 rng(2);
  int drawn = 0;
  for (int i = 0; i < test::cases(4000); ++i) {
    const size_t vocab = 1 + rng() % (i % 10 == 0 ? 5000 : 200);
    const auto w = some_weights(vocab, i % 3, i % 2 ? 1 : 0.05, rng);
    const RaceKey key = {static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng())};
    const Token expected = winner(w, key);
    if (expected < 0) continue;
    ASSERT_EQ(race(w, key), expected);
    ++drawn;
  }
  EXPECT_GT(drawn, test::cases(3000));
}

TEST(Race, NeverDrawsWeightZero) {
  EXPECT_EQ(race(std::vector<float>(), {1, 2}), -1);
  EXPECT_EQ(race(std::vector<float>(200), {1, 2}), -1);
  std::vector<float> one(200);
  for (const float least : {1.0F, 0x1p-126F}) {
    one[150] = least;
    for (uint32_t k = 0; k < 1000; ++k) ASSERT_EQ(race(one, {k, k * k}), 150);
  }
}

// Scaling all weights changes nothing: they need not sum to 1.
TEST(Race, NeedsNoNormalization) {
  std::mt19937 rng(3);
  for (int i = 0; i < 500; ++i) {
    std::vector<float> w = some_weights(300, 2, 1, rng);
    const RaceKey key = {static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng())};
    const Token first = race(w, key);
    for (float& x : w) x *= 0x1p-20F;
    ASSERT_EQ(race(w, key), first);
  }
}

// Joint frequencies of three consecutive draws, along positions and along seeds, with distant
// tokens. The test detects another distribution.
TEST(Race, DrawsAreDistributedAsTheWeightsAndIndependent) {
  const std::vector<double> p = {0.4, 0.05, 0.3, 0.25};
  for (const size_t stride : {1u, 64u, 1000u}) {
    std::vector<float> w(3 * stride + 1);
    for (size_t i = 0; i < p.size(); ++i) w[i * stride] = static_cast<float>(p[i]);
    for (const bool along_seeds : {false, true}) {
      std::vector<int64_t> counts(64);
      for (int i = 0; i < test::kDraws; ++i) {
        size_t cell = 0;
        for (int j = 0; j < 3; ++j) {
          const RaceKey key = along_seeds
                                  ? race_key(static_cast<uint64_t>(i), 0, Purpose::kToken, j)
                                  : race_key(7, 0, Purpose::kToken, 3 * i + j);
          cell = cell * 4 + static_cast<size_t>(race(w, key)) / stride;
        }
        ++counts[cell];
      }
      std::vector<double> joint, other;
      for (size_t c = 0; c < 64; ++c) {
        joint.push_back(p[c / 16] * p[c / 4 % 4] * p[c % 4]);
        const double leaning = c % 4 == 2 ? 0.32 : c % 4 == 3 ? 0.23 : p[c % 4];
        other.push_back(p[c / 16] * p[c / 4 % 4] * leaning);
      }
      EXPECT_GT(testing::chi_square_p(counts, joint), 1e-4) << stride << along_seeds;
      if (test::kSanitized) continue;
      EXPECT_LT(testing::chi_square_p(counts, other), 1e-6) << stride << along_seeds;
    }
  }
}

// Tokens behind the first ones enter as they do in a whole row, whose other tokens weigh nothing.
TEST(Race, SingleTokensHaveTheDrawsOfAWholeRow) {
  std::mt19937 rng(7);
  int drawn = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t first = rng() % 200;
    std::vector<Token> more;
    for (auto t = static_cast<Token>(first + rng() % 5); t < 400; t += 1 + Token(rng() % 90)) {
      more.push_back(t);
    }
    const std::vector<float> row = some_weights(first + more.size(), 1, 0.8, rng);
    std::vector<float> whole(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(first));
    whole.resize(400);
    for (size_t m = 0; m < more.size(); ++m) whole[size_t(more[m])] = row[first + m];
    const RaceKey key = race_key(3, 0, Purpose::kToken, i);
    const Token winner = race(row, key, more);
    EXPECT_EQ(winner, race(whole, key));
    drawn += winner >= static_cast<Token>(first) ? 1 : 0;
  }
  EXPECT_GT(drawn, 100);
}

// Large vocabulary: the tail is drawn according to its weight.
TEST(Race, LargeVocabulariesAreDrawnEvenly) {
  constexpr size_t kVocab = 20'000, kCells = 100;
  const std::vector<float> w(kVocab, 1e-3F);
  std::vector<int64_t> counts(kCells);
  for (int i = 0; i < test::cases(40'000); ++i) {
    ++counts[static_cast<size_t>(race(w, race_key(1, 0, Purpose::kToken, i))) * kCells / kVocab];
  }
  const std::vector<double> even(kCells, 1.0 / kCells);
  EXPECT_GT(testing::chi_square_p(counts, even), 1e-4);
}

// Two distributions under one key give the same token at least as often as the bound.
TEST(Race, CouplesDrawsUnderOneKey) {
  std::mt19937 rng(4);
  for (int i = 0; i < test::cases(10); ++i) {
    std::vector<float> p = some_weights(50, 1, 1, rng), q = p;
    for (float& x : q) x = std::min(1.0F, x * (0.5F + static_cast<float>(rng() % 1000) / 1000));
    double p_sum = 0, q_sum = 0, distance = 0;
    for (const float x : p) p_sum += double{x};
    for (const float x : q) q_sum += double{x};
    for (size_t v = 0; v < p.size(); ++v) {
      distance += std::abs(double{p[v]} / p_sum - double{q[v]} / q_sum) / 2;
    }
    int same = 0;
    for (int k = 0; k < 20'000; ++k) {
      const RaceKey key = race_key(static_cast<uint64_t>(i), 0, Purpose::kToken, k);
      same += race(p, key) == race(q, key) ? 1 : 0;
    }
    const double least = (1 - distance) / (1 + distance);
    EXPECT_GT(same / 20'000.0, least - 0.01);
    EXPECT_LT(same / 20'000.0, 1 - distance + 0.01) << "no coupling does better";
  }
}

// Close inputs of the hash have independent outputs: pairs of tokens, under one key and under
// neighbouring keys.
TEST(Race, HashesOfNearTokensAreIndependent) {
  constexpr size_t kSide = 16;
  const std::vector<double> even(kSide * kSide, 1.0 / (kSide * kSide));
  for (const uint32_t distance : {1u, 2u, 16u, 64u, 4096u, 100'000u}) {
    std::vector<int64_t> counts(kSide * kSide), over_positions(kSide * kSide);
    for (int i = 0; i < 2 * test::kDraws; ++i) {
      const RaceKey key = race_key(9, 0, Purpose::kToken, i / 10);
      const RaceKey next = race_key(9, 0, Purpose::kToken, i / 10 + 1);
      const auto v = static_cast<uint32_t>(i % 10 * 7);
      const uint32_t a = race_word(key, v) >> 28, b = race_word(key, v + distance) >> 28;
      ++counts[a * kSide + b];
      ++over_positions[a * kSide + (race_word(next, v + distance) >> 28)];
    }
    EXPECT_GT(testing::chi_square_p(counts, even), 1e-4) << distance;
    EXPECT_GT(testing::chi_square_p(over_positions, even), 1e-4) << distance;
  }
}

}  // namespace
}  // namespace tandem::sampling
