#include "engine/sampling/random.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "tests/engine/sampling/statistics.h"

namespace tandem::sampling {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123's kat_vectors, "philox4x32 10".
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsAFunctionOfItsKeyAlone) {
  std::set<double> seen;
  size_t keys = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (const uint32_t choice : {0u, 1u, 7u}) {
      for (const Purpose purpose :
           {Purpose::kToken, Purpose::kDraft, Purpose::kAccept, Purpose::kResidual}) {
        for (const int position : {0, 1, 2, 100000}) {
          const double u = uniform(seed, choice, purpose, position);
          EXPECT_EQ(u, uniform(seed, choice, purpose, position));
          EXPECT_GE(u, 0);
          EXPECT_LT(u, 1);
          seen.insert(u);
          ++keys;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), keys);
}

TEST(Uniform, OnlyTokensIgnoreTheRound) {
  EXPECT_EQ(uniform(5, 1, Purpose::kToken, 9, 4), uniform(5, 1, Purpose::kToken, 9, 8));
  EXPECT_EQ(race_key(5, 1, Purpose::kToken, 9, 4), race_key(5, 1, Purpose::kToken, 9, 8));
  for (const Purpose purpose : {Purpose::kDraft, Purpose::kAccept, Purpose::kResidual}) {
    EXPECT_NE(race_key(5, 1, purpose, 9, 4), race_key(5, 1, purpose, 9, 8));
    EXPECT_NE(uniform(5, 1, purpose, 9, 4), uniform(5, 1, purpose, 9, 8));
  }
}

TEST(Uniform, FillsItsRangeEvenly) {
  constexpr size_t kCells = 64;
  const std::vector<double> even(kCells, 1.0 / kCells);
  // Along positions (one request), and along seeds (many requests at one position).
  for (const bool along_seeds : {false, true}) {
    std::vector<int64_t> counts(kCells);
    for (int i = 0; i < 200000; ++i) {
      const double u = along_seeds ? uniform(static_cast<uint64_t>(i), 0, Purpose::kToken, 3)
                                   : uniform(11, 0, Purpose::kToken, i);
      ++counts[static_cast<size_t>(u * kCells)];
    }
    EXPECT_GT(testing::chi_square_p(counts, even), 1e-4);
  }
}

}  // namespace
}  // namespace tandem::sampling
