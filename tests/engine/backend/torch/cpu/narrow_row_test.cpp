// Conversion of rows to narrow types, on every target.
#include "engine/backend/torch/cpu/narrow_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/cpu/numbers.h"

namespace tandem {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class NarrowRowOn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_target(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(cpu::force_target("").ok()); }
};

// Contents of a kInt8 row.
struct Blocks {
  std::vector<int8_t> numbers;
  std::vector<float> scales;
  std::vector<int32_t> starts;

  explicit Blocks(const std::vector<float>& from) {
    const auto n = static_cast<int64_t>(from.size());
    // One extra word as a guard.
    std::vector<int32_t> row(static_cast<size_t>(cpu::quantized_row_size(n)) + 1, 77);
    cpu::quantize_row(row.data(), from.data(), n);
    const int32_t* at = row.data();
    for (int64_t i = 0; i < n; i += cpu::kRowBlock) {
      const int64_t size = std::min(cpu::kRowBlock, n - i);
      starts.push_back(*at++);
      const auto* bytes = reinterpret_cast<const int8_t*>(at);
      numbers.insert(numbers.end(), bytes, bytes + size);
      at += (size + 3) / 4;
      for (const auto* pad = bytes + size; pad < reinterpret_cast<const int8_t*>(at); ++pad) {
        EXPECT_EQ(*pad, 0);
      }
      scales.push_back(std::bit_cast<float>(*at++));
    }
    EXPECT_EQ(*at, 77);
  }
};

TEST_P(NarrowRowOn, Int8RoundsToNearestPerBlock) {
  for (const int64_t n : {1, 3, 16, 127, 128, 129, 513, 1030}) {
    const auto from = as<float>(random_numbers(n, static_cast<uint64_t>(n)));
    const Blocks got(from);
    ASSERT_EQ(got.numbers.size(), from.size());
    std::vector<int32_t> sums(got.scales.size());
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t block = i / cpu::kRowBlock;
      sums[block] += got.numbers[i];
      EXPECT_NEAR(got.scales[block] * static_cast<float>(got.numbers[i]), from[i],
                  got.scales[block] * 0.5001)
          << n << " at " << i;
      EXPECT_GE(got.numbers[i], -127);
    }
    for (size_t b = 0; b < sums.size(); ++b) {
      EXPECT_EQ(got.starts[b], -128 * sums[b]);
      const auto first = from.begin() + static_cast<int64_t>(b) * cpu::kRowBlock;
      const auto end = std::min(first + cpu::kRowBlock, from.end());
      const auto [low, high] = std::minmax_element(first, end);
      EXPECT_FLOAT_EQ(got.scales[b] * 127, std::max(-*low, *high));
    }
  }
}

TEST_P(NarrowRowOn, Int8BlocksAreIndependent) {
  auto from = as<float>(random_numbers(3 * cpu::kRowBlock, 1));
  const Blocks before(from);
  std::fill_n(from.begin() + cpu::kRowBlock, cpu::kRowBlock, 1e6f);
  const Blocks after(from);
  for (const size_t b : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(before.scales[b], after.scales[b]);
    EXPECT_EQ(before.starts[b], after.starts[b]);
  }
}

TEST_P(NarrowRowOn, NonFiniteValuesGiveANaNScale) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const size_t at : {size_t{0}, size_t{200}, size_t{298}}) {
      auto from = as<float>(random_numbers(299, 2));
      from[at] = bad;
      const Blocks got(from);
      for (size_t b = 0; b < got.scales.size(); ++b) {
        EXPECT_EQ(std::isnan(got.scales[b]), b == at / cpu::kRowBlock) << bad << " at " << at;
      }
      std::vector<int16_t> wide(from.size() + 1);
      EXPECT_TRUE(std::isnan(cpu::quantize_row(wide.data(), from.data(), 299)));
    }
  }
}

TEST_P(NarrowRowOn, Int16RoundsToNearestPerRow) {
  for (const int64_t n : {1, 7, 64, 301}) {
    const auto from = as<float>(random_numbers(n, 3));
    std::vector<int16_t> got(from.size() + 2, 77);
    const float scale = cpu::quantize_row(got.data(), from.data(), n);
    int most = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_NEAR(scale * static_cast<float>(got[i]), from[i], scale * 0.501) << n << " at " << i;
      most = std::max(most, std::abs(int{got[i]}));
    }
    EXPECT_EQ(most, 8191);
    EXPECT_EQ(got[from.size()], n % 2 != 0 ? 0 : 77);
  }
}

// Zeros, and magnitudes too small to have an inverse.
TEST_P(NarrowRowOn, ZerosAndTinyValuesBecomeZeros) {
  for (const float little : {0.f, -0.f, 1e-31f, std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> from(70, little);
    const Blocks got(from);
    EXPECT_EQ(got.numbers, std::vector<int8_t>(70, 0));
    EXPECT_TRUE(std::isfinite(got.scales[0]));
    std::vector<int16_t> wide(70, 1);
    EXPECT_TRUE(std::isfinite(cpu::quantize_row(wide.data(), from.data(), 70)));
    EXPECT_EQ(wide, std::vector<int16_t>(70, 0));
  }
}

// Words of a row, and a guard.
std::vector<int32_t> grouped(const float* from, int64_t n) {
  std::vector<int32_t> row(static_cast<size_t>(n / 32 * cpu::quantized_words()) + 1, 77);
  cpu::quantize_groups(row.data(), from, n);
  EXPECT_EQ(row.back(), 77);
  row.pop_back();
  return row;
}

TEST_P(NarrowRowOn, GroupsAreIndependent) {
  for (const float special : {1e-31f, kNan, -kInfinity, 3e38f}) {
    for (size_t at = 0; at < 11; ++at) {
      auto from = as<float>(random_numbers(11 * 32, at));
      for (int i = 0; i < 11 * 32; ++i) from[static_cast<size_t>(i)] *= std::ldexp(1.f, i / 32);
      std::fill_n(from.begin() + static_cast<int64_t>(32 * at), 32, special);
      const std::vector<int32_t> all = grouped(from.data(), std::ssize(from));
      for (size_t g = 0; g < 11; ++g) {
        const std::vector<int32_t> one = grouped(from.data() + 32 * g, 32);
        EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + std::ssize(one) * g))
            << special << " at " << at << ", group " << g;
      }
    }
  }
}

// Codes, sums and scale of four groups and of one.
TEST_P(NarrowRowOn, GroupsRoundToNearest) {
  auto from = as<float>(random_numbers(5 * 32, 5));
  for (size_t i = 0; i < from.size(); i += 32) from[i] = 127;  // a scale of 1
  from[1] = 2.5f, from[2] = -3.5f, from[3] = -126.75f;         // two ties
  const std::vector<int32_t> row = grouped(from.data(), std::ssize(from));
  for (size_t g = 0; g < 5; ++g) {
    const int32_t* words = row.data() + g * static_cast<size_t>(cpu::quantized_words());
    const int32_t* end = words + cpu::quantized_words();
    std::vector<int> codes;
    for (size_t i = 0; i < 32; ++i) {
      const size_t pair = i % 2 + i / 4 * 2;  // of elements 0 and 2, or 1 and 3
      codes.push_back(cpu::multiplies_fours()
                          ? reinterpret_cast<const int8_t*>(words)[i]
                          : reinterpret_cast<const int16_t*>(words + pair)[i / 2 % 2]);
      EXPECT_EQ(codes.back(), std::lrint(from[32 * g + i])) << g << " at " << i;
    }
    const int first = std::accumulate(codes.begin(), codes.begin() + 16, 0);
    const int sum = std::accumulate(codes.begin(), codes.end(), 0);
    EXPECT_EQ(std::bit_cast<float>(end[-2]), 1) << g;
    EXPECT_EQ(std::bit_cast<float>(end[-1]), static_cast<float>(sum)) << g;
    if (cpu::quantized_words() == 12) continue;
    EXPECT_EQ(end[-5], -32 * first) << g;
    EXPECT_EQ(end[-4], -32 * (sum - first)) << g;
    EXPECT_EQ(end[-3], -16 * sum) << g;
  }
}

TEST_P(NarrowRowOn, BFloat16RoundsToNearest) {
  auto from = as<float>(random_numbers(65, 4));
  from[0] = kInfinity;
  from[1] = -1.00390625f;  // a tie: to even
  from[2] = 1.01171875f;
  std::vector<uint16_t> got(67, 77);
  cpu::round_row(got.data(), from.data(), 65);
  for (size_t i = 0; i < 65; ++i) EXPECT_EQ(got[i], bfloat_bits(from[i])) << i;
  EXPECT_EQ(bfloat(from[1]), -1);
  EXPECT_EQ(bfloat(from[2]), 1.015625);
  EXPECT_EQ(got[65], 0);
  EXPECT_EQ(got[66], 77);
  cpu::round_row(got.data(), &kNan, 1);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(uint32_t{got[0]} << 16)));
}

INSTANTIATE_TEST_SUITE_P(Targets, NarrowRowOn, testing::ValuesIn(cpu::targets()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
