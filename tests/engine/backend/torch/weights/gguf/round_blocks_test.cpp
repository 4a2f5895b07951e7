#include "engine/backend/torch/weights/gguf/round_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tandem {
namespace {

constexpr size_t kBlock = 32;

std::vector<float> normal(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& v : values) {  // Irwin-Hall distribution: the same on every machine
    v = -6;
    for (int i = 0; i < 12; ++i) v += static_cast<float>(random()) / 0x1p32f;
  }
  return values;
}

// Values of the blocks.
std::vector<float> rounded(BlockType type, const std::vector<float>& values) {
  const BlockFormat& format = *find_block_format(static_cast<uint32_t>(type));
  std::vector<std::byte> blocks(values.size() / kBlock * static_cast<size_t>(format.bytes));
  EXPECT_TRUE(round_row(type, values, blocks.data()));
  std::vector<float> back(values.size());
  for (size_t b = 0; b < values.size() / kBlock; ++b) {
    format.decode(&blocks[b * static_cast<size_t>(format.bytes)], &back[b * kBlock]);
  }
  return back;
}

double squares_apart(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// Quantized with minimum and maximum as the ends of the range, as ggml's own Q4_1 does.
std::vector<float> by_range(const std::vector<float>& values) {
  std::vector<float> to;
  for (size_t b = 0; b < values.size(); b += kBlock) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(b), end = begin + kBlock;
    const float least = *std::min_element(begin, end);
    const float step = (*std::max_element(begin, end) - least) / 15;
    for (auto i = begin; i < end; ++i) to.push_back(least + step * std::round((*i - least) / step));
  }
  return to;
}

TEST(RoundBlocks, FourBitsAreMoreAccurateThanMinMax) {
  const std::vector<float> values = normal(64 * kBlock, 1);
  const double ours = squares_apart(values, rounded(BlockType::kQ41, values));
  EXPECT_LT(ours, 0.97 * squares_apart(values, by_range(values)));
  EXPECT_GT(ours, 0);
}

// Quantized with the largest magnitude as -8, as ggml's own Q4_0 does.
std::vector<float> by_magnitude(const std::vector<float>& values) {
  std::vector<float> to;
  for (size_t b = 0; b < values.size(); b += kBlock) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(b), end = begin + kBlock;
    const auto smaller = [](float x, float y) { return std::fabs(x) < std::fabs(y); };
    const float step = *std::max_element(begin, end, smaller) / -8;
    for (auto i = begin; i < end; ++i) {
      to.push_back(step * std::clamp(std::round(*i / step), -8.f, 7.f));
    }
  }
  return to;
}

TEST(RoundBlocks, FourBitsWithoutMinimumAreMoreAccurateThanByMagnitude) {
  const std::vector<float> values = normal(64 * kBlock, 1);
  const double ours = squares_apart(values, rounded(BlockType::kQ40, values));
  EXPECT_LT(ours, 0.95 * squares_apart(values, by_magnitude(values)));
  EXPECT_GT(ours, squares_apart(values, rounded(BlockType::kQ41, values)));
}

TEST(RoundBlocks, EightBitsAreWithinHalfAStep) {
  const std::vector<float> values = normal(8 * kBlock, 2);
  const std::vector<float> back = rounded(BlockType::kQ80, values);
  for (size_t b = 0; b < values.size(); b += kBlock) {
    float most = 0;
    for (size_t i = b; i < b + kBlock; ++i) most = std::max(most, std::fabs(values[i]));
    for (size_t i = b; i < b + kBlock; ++i) {
      // Half a step, plus the rounding of the scale times 127.
      EXPECT_NEAR(back[i], values[i], most / 127 * 0.5 + most * 0x1p-11);
    }
  }
}

TEST(RoundBlocks, RepresentableValuesAreExact) {
  std::vector<float> values;
  for (size_t i = 0; i < kBlock; ++i) values.push_back(0.25f * static_cast<float>(i % 16) - 1.5f);
  EXPECT_EQ(rounded(BlockType::kQ41, values), values);
  const std::vector<float> equal(kBlock, -3.5f), zeros(kBlock, 0.f);
  EXPECT_EQ(rounded(BlockType::kQ41, equal), equal);
  for (const BlockType type : {BlockType::kQ40, BlockType::kQ41, BlockType::kQ80}) {
    EXPECT_EQ(rounded(type, zeros), zeros);
  }
  std::vector<float> steps;
  for (size_t i = 0; i < kBlock; ++i) steps.push_back(0.5f * static_cast<float>(i % 16) - 4);
  EXPECT_EQ(rounded(BlockType::kQ40, steps), steps);
  std::vector<float> whole;
  for (size_t i = 0; i < kBlock; ++i) whole.push_back(static_cast<float>(i) * 4 - 127 + 3);
  whole[0] = 127;
  EXPECT_EQ(rounded(BlockType::kQ80, whole), whole);
}

TEST(RoundBlocks, EachBlockIsRoundedAlone) {
  std::vector<float> values = normal(19 * kBlock, 4);
  for (size_t i = 0; i < kBlock; ++i) values[3 * kBlock + i] = 0, values[5 * kBlock + i] *= 1e-6f;
  for (const BlockType type : {BlockType::kQ40, BlockType::kQ41, BlockType::kQ80}) {
    std::vector<float> alone;
    for (size_t b = 0; b < values.size(); b += kBlock) {
      const auto begin = values.begin() + static_cast<ptrdiff_t>(b);
      const std::vector<float> block = rounded(type, {begin, begin + kBlock});
      alone.insert(alone.end(), block.begin(), block.end());
    }
    EXPECT_EQ(rounded(type, values), alone);
  }
}

TEST(RoundBlocks, TinyValuesBecomeZero) {  // the inverse of their scale is infinite
  std::vector<float> values(kBlock, 1e-40f);
  values[0] = 3e-40f;
  const std::vector<float> zeros(kBlock, 0.f);
  for (const BlockType type : {BlockType::kQ40, BlockType::kQ41}) {
    EXPECT_EQ(rounded(type, values), zeros);
  }
}

TEST(RoundBlocks, RejectsUnrepresentableValues) {
  std::vector<std::byte> to(34);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1e38f}) {
    std::vector<float> values = normal(kBlock, 3);
    values[7] = bad;
    EXPECT_FALSE(round_row(BlockType::kQ40, values, to.data())) << bad;
    EXPECT_FALSE(round_row(BlockType::kQ41, values, to.data())) << bad;
    EXPECT_FALSE(round_row(BlockType::kQ80, values, to.data())) << bad;
  }
}

}  // namespace
}  // namespace tandem
