#include "engine/sampling/accept.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "engine/sampling/race.h"
#include "engine/sampling/random.h"
#include "engine/sampling/warp.h"
#include "tests/engine/sampling/statistics.h"
#include "tests/sanitized.h"

namespace tandem::sampling {
namespace {

constexpr size_t kVocab = 5;
constexpr size_t kTokens = 3;  // whose joint distribution is looked at

// A language model as a table: distributions by prefix, made on first use.
class Table {
 public:
  Table(uint32_t seed, double sharpness) : rng_(seed), sharpness_(sharpness) {}
  const std::vector<float>& operator()(const std::vector<Token>& prefix) {
    std::vector<float>& p = rows_[prefix];
    if (p.empty()) {
      std::normal_distribution<double> normal(0, sharpness_);
      for (size_t i = 0; i < kVocab; ++i) p.push_back(static_cast<float>(std::exp(normal(rng_))));
      if (rng_() % 3 == 0) p[rng_() % kVocab] = 0;
      normalize(p, sum(p), p);
    }
    return p;
  }

 private:
  std::map<std::vector<Token>, std::vector<float>> rows_;
  std::mt19937 rng_;
  double sharpness_;
};

enum class Draft { kTable, kOneHot };
enum class OnRejection { kResidual, kTarget };  // kTarget is the mistake the test must see

// Speculative sampling from the empty sequence up to kTokens tokens.
std::vector<Token> speculate(Table& target, Table& draft, uint64_t seed, size_t gamma, Draft kind,
                             OnRejection on_rejection) {
  std::vector<Token> seq;
  while (seq.size() < kTokens) {
    const int start = static_cast<int>(seq.size());
    std::vector<Token> y = seq;
    for (size_t i = 0; i < gamma; ++i) {
      const std::vector<float>& q = draft(y);
      const int at = static_cast<int>(y.size());
      y.push_back(kind == Draft::kOneHot ? scan(q).argmax
                                         : race(q, race_key(seed, 0, Purpose::kDraft, at, start)));
    }
    for (size_t i = 0;; ++i) {
      const int at = static_cast<int>(seq.size());
      std::vector<float> p = target(seq);
      if (i == gamma) {
        seq.push_back(race(p, race_key(seed, 0, Purpose::kToken, at)));
        break;
      }
      const DraftDist q{kind == Draft::kOneHot ? std::span<const float>() : draft(seq)};
      const Token drafted = y[seq.size()];
      const RaceKey residual = race_key(seed, 0, Purpose::kResidual, at, start);
      Verdict v = judge(p, q, drafted, uniform(seed, 0, Purpose::kAccept, at, start), residual);
      if (!v.accepted && on_rejection == OnRejection::kTarget) {
        v.token = race(target(seq), residual);
      }
      seq.push_back(v.token);
      if (!v.accepted) break;
    }
  }
  seq.resize(kTokens);
  return seq;
}

// Chi-square p of `draws` sequences against the enumerated joint distribution.
double joint_p(uint32_t tables, size_t gamma, Draft kind, OnRejection on_rejection) {
  Table target(tables, 1.0);
  Table draft(tables + 1000, 1.2);
  std::vector<double> joint;
  for (Token a = 0; a < static_cast<Token>(kVocab); ++a) {
    for (Token b = 0; b < static_cast<Token>(kVocab); ++b) {
      for (Token c = 0; c < static_cast<Token>(kVocab); ++c) {
        joint.push_back(double{target({})[static_cast<size_t>(a)]} *
                        target({a})[static_cast<size_t>(b)] *
                        target({a, b})[static_cast<size_t>(c)]);
      }
    }
  }
  std::vector<int64_t> counts(joint.size());
  for (uint64_t seed = 0; seed < test::kDraws; ++seed) {
    const std::vector<Token> s = speculate(target, draft, seed, gamma, kind, on_rejection);
    ++counts[(static_cast<size_t>(s[0]) * kVocab + static_cast<size_t>(s[1])) * kVocab +
             static_cast<size_t>(s[2])];
  }
  return testing::chi_square_p(counts, joint);
}

TEST(Speculative, JointDistributionIsTheTargets) {
  for (const uint32_t tables : {1u, 2u}) {
    for (const size_t gamma : {1u, 2u, 4u}) {
      EXPECT_GT(joint_p(tables, gamma, Draft::kTable, OnRejection::kResidual), 1e-4)
          << tables << " " << gamma;
    }
    EXPECT_GT(joint_p(tables, 3, Draft::kOneHot, OnRejection::kResidual), 1e-4) << tables;
  }
}

// Negative control: the test detects draws from p after a rejection.
TEST(Speculative, DetectsResamplingFromTheTarget) {
  if (test::kSanitized) GTEST_SKIP() << "too few draws";
  EXPECT_LT(joint_p(1, 2, Draft::kTable, OnRejection::kTarget), 1e-10);
  EXPECT_LT(joint_p(1, 3, Draft::kOneHot, OnRejection::kTarget), 1e-10);
}

TEST(Accept, ComparesTheRatioWithTheUniform) {
  const std::vector<float> p = {0.25f, 0.75f, 0};
  const std::vector<float> q = {0.5f, 0.25f, 0.25f};
  EXPECT_TRUE(accepts(p, {q}, 0, 0.49));
  EXPECT_FALSE(accepts(p, {q}, 0, 0.5));
  EXPECT_TRUE(accepts(p, {q}, 1, 1 - 0x1p-53));  // p > q: always
  EXPECT_FALSE(accepts(p, {q}, 2, 0));           // p = 0: never
  EXPECT_TRUE(accepts(p, {}, 1, 0.74));          // one-hot: with probability p
  EXPECT_FALSE(accepts(p, {}, 1, 0.75));
  EXPECT_FALSE(accepts(p, {q}, 3, 0));     // a draft that the target does not have
  EXPECT_TRUE(accepts(q, {p}, 2, 0.999));  // q = 0 <= p
}

TEST(Accept, Residual) {
  std::vector<float> p = {0.25f, 0.75f, 0};
  EXPECT_EQ(to_residual(p, {std::vector<float>{0.5f, 0.25f, 0.25f}}, 0), 0.5);
  EXPECT_EQ(p, (std::vector<float>{0, 0.5f, 0}));

  p = {0.25f, 0.5f, 0.25f};  // one-hot: p without the draft
  EXPECT_EQ(to_residual(p, {}, 1), 0.5);
  EXPECT_EQ(p, (std::vector<float>{0.25f, 0, 0.25f}));

  p = {0.25f, 0.75f};  // an empty residual: p itself
  EXPECT_EQ(to_residual(p, {std::vector<float>{0.25f, 0.75f}}, 0), 1);
  EXPECT_EQ(p, (std::vector<float>{0.25f, 0.75f}));
  p = {0, 1};
  EXPECT_EQ(to_residual(p, {}, 1), 1);
  EXPECT_EQ(p, (std::vector<float>{0, 1}));

  p = {0.25f, 0.25f, 0.5f};  // a draft with a smaller vocabulary
  EXPECT_EQ(to_residual(p, {std::vector<float>{0.5f, 0.5f}}, 0), 0.5);
  EXPECT_EQ(p, (std::vector<float>{0, 0, 0.5f}));
}

TEST(Accept, EqualDistributionsAlwaysAccept) {
  std::mt19937 rng(3);
  Table table(8, 2);
  for (int i = 0; i < 10000; ++i) {
    std::vector<float> p = table({static_cast<Token>(i % 50)});
    const std::vector<float> q = p;
    const double u = uniform(1, 0, Purpose::kAccept, i);
    const Token drafted = race(q, race_key(1, 0, Purpose::kDraft, i));
    ASSERT_TRUE(judge(p, {q}, drafted, u, {}).accepted);
  }
}

TEST(Accept, Match) {
  EXPECT_TRUE(judge_match(4, 4).accepted);
  EXPECT_FALSE(judge_match(4, 3).accepted);
  EXPECT_EQ(judge_match(4, 3).token, 4);
}

}  // namespace
}  // namespace tandem::sampling
