#include "engine/sampling/warp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "engine/sampling/race.h"
#include "engine/sampling/random.h"
#include "tests/engine/sampling/brute_force.h"
#include "tests/engine/sampling/statistics.h"

namespace tandem::sampling {
namespace {

using testing::best_tokens;
using testing::warped_probs;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal_row(size_t vocab, double scale, std::mt19937& rng) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> row(vocab);
  for (float& x : row) x = static_cast<float>(normal(rng));
  return row;
}

std::vector<float> probs_of(const Warp& warp, const std::vector<float>& logits) {
  Scratch scratch;
  std::vector<float> probs(logits.size());
  warp_to_probs(warp, logits, probs, scratch);
  return probs;
}

Warp warp_of(float temperature, int top_k = 0, float top_p = 1, float min_p = 0) {
  Warp w;
  w.temperature = temperature;
  w.top_k = top_k;
  w.top_p = top_p;
  w.min_p = min_p;
  return w;
}

// make_goldens.py runs each warper and their combinations in Transformers.
TEST(Warp, EqualsTransformers) {
  std::ifstream file(TANDEM_SOURCE_DIR "/tests/engine/sampling/warp_golden.txt");
  ASSERT_TRUE(file.is_open());
  const auto number = [](std::istream& in) {  // streams do not read "-inf"
    std::string word;
    in >> word;
    return std::strtod(word.c_str(), nullptr);
  };
  std::vector<float> logits;
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string kind;
    in >> kind;
    if (kind == "row") {
      size_t vocab = 0;
      in >> vocab;
      logits.resize(vocab);
      for (float& x : logits) x = static_cast<float>(number(in));
      continue;
    }
    const double temperature = number(in);
    const double top_k = number(in);
    const double top_p = number(in);
    const double min_p = number(in);
    size_t survivors = 0;
    in >> survivors;
    std::vector<double> expected(logits.size(), 0.0);
    std::vector<bool> survives(logits.size(), false);
    for (size_t i = 0; i < survivors; ++i) {
      size_t id = 0;
      char colon = 0;
      in >> id >> colon;
      expected[id] = number(in);
      survives[id] = true;
    }
    ASSERT_TRUE(in) << line;

    const Warp w = warp_of(static_cast<float>(temperature), static_cast<int>(top_k),
                           static_cast<float>(top_p), static_cast<float>(min_p));
    Scratch scratch;
    const Warped warped = warp(w, logits, scan(logits), scratch);
    const std::vector<float> probs = probs_of(w, logits);
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(probs[i], expected[i], 1e-5) << line << "\n token " << i;
      const float logprob = warped.logprob(static_cast<Token>(i), logits[i]);
      ASSERT_EQ(std::isinf(logprob), !survives[i]) << line << "\n token " << i;
      if (expected[i] > 1e-30) {
        ASSERT_NEAR(logprob, std::log(expected[i]), 1e-5 * (1 + std::abs(logprob)));
      }
    }
    ++cases;
  }
  EXPECT_GT(cases, 1000);
}

TEST(Warp, EqualsBruteForceOnLargeRows) {
  std::mt19937 rng(3);
  for (const size_t vocab : {100u, 1023u, 1024u, 1025u, 5000u, 40000u}) {
    for (const double scale : {0.5, 4.0}) {
      const std::vector<float> logits = normal_row(vocab, scale, rng);
      for (const Warp& w : {warp_of(1), warp_of(0.6f, 40), warp_of(1, 0, 0.9f),
                            warp_of(1.4f, 0, 1, 0.02f), warp_of(0.9f, 300, 0.8f, 0.01f)}) {
        const std::vector<double> expected = warped_probs(w, logits);
        const std::vector<float> probs = probs_of(w, logits);
        for (size_t i = 0; i < vocab; ++i) {
          ASSERT_NEAR(probs[i], expected[i], 1e-6 + 1e-5 * expected[i]) << vocab << " " << i;
          ASSERT_EQ(probs[i] > 0, expected[i] > 0) << vocab << " " << i;
        }
      }
    }
  }
}

Warp typical(float temperature, float typical_p, int top_k = 0, float top_p = 1, float min_p = 0) {
  Warp w = warp_of(temperature, top_k, top_p, min_p);
  w.typical_p = typical_p;
  return w;
}

TEST(Warp, TypicalEqualsBruteForce) {
  std::mt19937 rng(4);
  int without_the_best = 0;
  for (const size_t vocab : {2u, 3u, 10u, 100u, 1023u, 1024u, 5000u, 20000u}) {
    for (int i = 0; i < (vocab < 1000 ? 100 : 10); ++i) {
      const double scale = std::vector<double>{0.3, 1, 3, 8}[rng() % 4];
      const std::vector<float> logits = normal_row(vocab, scale, rng);
      const float mass = 0.05f + 0.9f * static_cast<float>(rng() % 1000) / 1000;
      for (const Warp& w : {typical(1, mass), typical(0.6f, mass, 40), typical(1, mass, 0, 0.9f),
                            typical(1.4f, mass, 0, 1, 0.02f), typical(2, mass, 30, 0.8f, 0.01f)}) {
        const std::vector<double> expected = warped_probs(w, logits);
        const std::vector<float> probs = probs_of(w, logits);
        for (size_t t = 0; t < vocab; ++t) {
          ASSERT_NEAR(probs[t], expected[t], 1e-6 + 1e-5 * expected[t])
              << vocab << " " << i << " " << t << " typical_p " << mass;
          ASSERT_EQ(probs[t] > 0, expected[t] > 0) << vocab << " " << i << " " << t;
        }
        Scratch scratch;
        const Scan s = scan(logits);
        const Warped warped = warp(w, logits, s, scratch);
        for (size_t t = 0; t < vocab; ++t) {
          const float logprob = warped.logprob(static_cast<Token>(t), logits[t]);
          ASSERT_EQ(std::isinf(logprob), probs[t] == 0);
          if (probs[t] > 0) ASSERT_NEAR(std::exp(logprob), probs[t], 1e-5);
        }
        without_the_best += probs[static_cast<size_t>(s.argmax)] == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(without_the_best, 50);  // what no threshold from below describes
}

TEST(Warp, TypicalTiesAndExtremes) {
  EXPECT_EQ(probs_of(typical(1, 0.1f), {1, 1, 1, 1}), (std::vector<float>{.25, .25, .25, .25}));
  // top_p cuts through a tie; typical_p adds nothing back.
  EXPECT_EQ(probs_of(typical(1, 0.9f, 0, 0.5f), {1, 1, 1, 1}), (std::vector<float>{.5, .5, 0, 0}));
  EXPECT_EQ(probs_of(typical(1, 1e-9f), {3, -kInf}), (std::vector<float>{1, 0}));
  EXPECT_EQ(probs_of(typical(1e-44f, 0.5f), {1, 3, 2}), (std::vector<float>{0, 1, 0}));
  EXPECT_EQ(probs_of(typical(1, 0.5f), {3e38f, -3e38f, -kInf}), (std::vector<float>{1, 0, 0}));
  // One token of 0.4, and 99 that share the rest and are nearer to the entropy.
  std::vector<float> row(100, 0.0f);
  row[0] = std::log(0.4f / 0.6f * 99);
  const std::vector<float> probs = probs_of(typical(1, 0.3f), row);
  EXPECT_EQ(probs[0], 0);
  EXPECT_NEAR(probs[1], 1.0 / 99, 1e-6);
  EXPECT_EQ(probs_of(typical(0, 0.3f), row)[0], 1);  // greedy ignores it
}

TEST(Warp, TiesAndExtremes) {
  const std::vector<float> even = {1, 1, 1, 1};
  EXPECT_EQ(probs_of(warp_of(1, 2), even), (std::vector<float>{.25, .25, .25, .25}));
  EXPECT_EQ(probs_of(warp_of(1, 0, 0.5f), even), (std::vector<float>{.5, .5, 0, 0}));
  EXPECT_EQ(probs_of(warp_of(1, 0, 1e-30f), even), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(probs_of(warp_of(1, 0, 1, 1), even), (std::vector<float>{.25, .25, .25, .25}));
  EXPECT_EQ(probs_of(warp_of(0), even), (std::vector<float>{1, 0, 0, 0}));
  // The smallest temperatures are argmax in the limit, not NaN.
  EXPECT_EQ(probs_of(warp_of(1e-44f), {1, 3, 3, 2}), (std::vector<float>{0, .5, .5, 0}));
  EXPECT_EQ(probs_of(warp_of(1), {3e38f, -3e38f, -kInf}), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(probs_of(warp_of(1, 1000), {0, 0}), (std::vector<float>{.5, .5}));
}

// The last token is that of sorting, to the bit: sums of nucleus_weight() are exact in any order.
TEST(Warp, TopPEqualsSorting) {
  std::mt19937 rng(6);
  const std::vector<float> few = {-3.5f, 0, 2, 2.25f}, edges = {3e38f, -3e38f, -kInf, 0};
  for (int i = 0; i < 300; ++i) {
    const size_t vocab = 1 + rng() % (i % 10 == 0 ? 60'000 : 2'000);
    const double scale = std::vector<double>{0.001, 0.5, 4, 30}[rng() % 4];
    std::vector<float> logits = normal_row(vocab, scale, rng);
    for (float& x : logits) {
      if (i % 4 == 1) x = few[rng() % 4];
      if (i % 4 == 2) x = std::round(x) + 1e6f;
      if (i % 4 == 3) x = rng() % 8 == 0 ? edges[rng() % 4] : x;
    }
    const Scan s = scan(logits);
    if (!s.valid) continue;
    const float temperature = std::vector<float>{1e-30f, 0.05f, 0.8f, 2, 1e30f}[rng() % 5];
    Scratch scratch;
    warp(warp_of(temperature), logits, s, scratch);
    std::vector<float> weights(vocab);
    std::ranges::transform(scratch.weight, weights.begin(), nucleus_weight);
    const std::vector<Token> order = best_tokens(logits, static_cast<int>(vocab));
    for (const float p : {1e-6f, 0.1f, 0.5f, 0.9f, 0.999999f}) {
      const double target = p * sum(weights);
      size_t last = 0;
      double up_to = weights[static_cast<size_t>(order[0])];
      while (up_to < target) up_to += weights[static_cast<size_t>(order[++last])];
      const Warped warped = warp(warp_of(temperature, 0, p), logits, s, scratch);
      ASSERT_EQ(warped.cut_id, order[last]) << i << " " << vocab << " " << temperature << " " << p;
      ASSERT_EQ(warped.cut, logits[static_cast<size_t>(order[last])]);
    }
  }
}

TEST(Scan, FindsTheFirstMaximum) {
  std::mt19937 rng(5);
  for (const size_t vocab : {1u, 2u, 15u, 16u, 17u, 1024u, 1030u, 4096u, 5001u}) {
    for (int i = 0; i < 50; ++i) {
      std::vector<float> row(vocab);
      for (float& x : row) x = static_cast<float>(static_cast<int>(rng() % 64) - 32);  // many ties
      const Scan s = scan(row);
      ASSERT_TRUE(s.valid);
      ASSERT_EQ(s.argmax, std::max_element(row.begin(), row.end()) - row.begin());
      ASSERT_EQ(s.max, row[static_cast<size_t>(s.argmax)]);
    }
  }
  EXPECT_EQ(scan(std::vector<float>{-0.0f, 0.0f}).argmax, 0);
}

TEST(Scan, RefusesInvalidRows) {
  for (const size_t vocab : {1u, 7u, 40u, 1024u, 3000u}) {
    for (const float bad : {kNan, -kNan, kInf}) {
      for (const size_t at : {size_t{0}, vocab / 2, vocab - 1}) {
        std::vector<float> row(vocab, 1.0f);
        row[at] = bad;
        EXPECT_FALSE(scan(row).valid) << vocab << " " << bad << " " << at;
      }
    }
    std::vector<float> row(vocab, -kInf);
    EXPECT_FALSE(scan(row).valid);
    row[vocab - 1] = -1e30f;
    EXPECT_TRUE(scan(row).valid);
    EXPECT_EQ(scan(row).argmax, static_cast<Token>(vocab) - 1);
  }
  EXPECT_FALSE(scan({}).valid);
}

TEST(TopN, EqualsAStableSort) {
  std::mt19937 rng(7);
  Scratch scratch;
  std::vector<Token> best;
  for (const size_t vocab : {1u, 5u, 31u, 32u, 33u, 500u, 4096u}) {
    for (const int n : {0, 1, 2, 5, 16, 100, 5000}) {
      std::vector<float> row = normal_row(vocab, 2, rng);
      top_n(row, n, scratch, best);
      ASSERT_EQ(best, best_tokens(row, n));
      for (float& x : row) x = std::round(x);  // ties
      top_n(row, n, scratch, best);
      ASSERT_EQ(best, best_tokens(row, n)) << vocab << " " << n;
    }
  }
  const std::vector<float> banned = {-kInf, 1, -kInf, 2};
  top_n(banned, 3, scratch, best);
  EXPECT_EQ(best, (std::vector<Token>{3, 1, 0}));
}

TEST(LogNormalizer, EqualsLogSoftmax) {
  std::mt19937 rng(9);
  for (const size_t vocab : {1u, 3u, 1000u, 20000u}) {
    for (const double scale : {0.1, 3.0, 50.0}) {
      const std::vector<float> row = normal_row(vocab, scale, rng);
      const float max = *std::max_element(row.begin(), row.end());
      double total = 0;
      for (const float x : row) total += std::exp(double{x} - max);
      EXPECT_NEAR(log_normalizer(row, max), std::log(total), 1e-6);
    }
  }
}

// Draws against the enumerated distribution (docs/reliability.md, oracle 7).
TEST(Draw, FollowsTheWarpedDistribution) {
  std::mt19937 rng(13);
  for (int round = 0; round < 9; ++round) {
    const std::vector<float> logits = normal_row(16, 1.5, rng);
    const Warp w =
        std::vector<Warp>{warp_of(1),
                          warp_of(0.7f, 5),
                          warp_of(1, 0, 0.8f),
                          warp_of(1.5f, 0, 1, 0.1f),
                          warp_of(2, 10, 0.9f, 0.05f),
                          warp_of(0.3f),
                          typical(1, 0.6f),
                          typical(1.3f, 0.8f, 12),
                          typical(0.9f, 0.9f, 14, 0.95f, 0.01f)}[static_cast<size_t>(round)];
    Scratch scratch;
    warp(w, logits, scan(logits), scratch);
    std::vector<int64_t> counts(16);
    for (int i = 0; i < 200000; ++i) {
      const RaceKey key = race_key(static_cast<uint64_t>(round), 0, Purpose::kToken, i);
      ++counts[static_cast<size_t>(race(scratch.weight, key))];
    }
    EXPECT_GT(testing::chi_square_p(counts, warped_probs(w, logits)), 1e-4) << round;
    // Negative control: another temperature.
    EXPECT_LT(testing::chi_square_p(counts, warped_probs(warp_of(0.5f), logits)), 1e-6) << round;
  }
}

// Negative control for the order of warpers: top_p applies after temperature.
TEST(Draw, DetectsAWrongOrderOfWarpers) {
  const std::vector<float> logits = {3, 2.2f, 1.5f, 1, 0.4f, 0, -0.5f, -1, -1.2f, -2};
  const Warp right = warp_of(1.8f, 0, 0.85f);
  Scratch scratch;
  warp(right, logits, scan(logits), scratch);
  std::vector<int64_t> counts(logits.size());
  for (int i = 0; i < 200000; ++i) {
    ++counts[static_cast<size_t>(race(scratch.weight, race_key(5, 0, Purpose::kToken, i)))];
  }
  EXPECT_GT(testing::chi_square_p(counts, warped_probs(right, logits)), 1e-4);

  std::vector<double> wrong(logits.begin(), logits.end());
  const std::vector<double> nucleus = warped_probs(warp_of(1, 0, 0.85f), logits);
  for (size_t i = 0; i < wrong.size(); ++i) wrong[i] = nucleus[i] > 0 ? wrong[i] : -INFINITY;
  EXPECT_LT(testing::chi_square_p(counts, warped_probs(warp_of(1.8f), wrong)), 1e-6);
}

}  // namespace
}  // namespace tandem::sampling
