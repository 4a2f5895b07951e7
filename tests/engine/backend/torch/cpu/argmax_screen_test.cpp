// The greatest elements that a screen finds against those of the whole product.
#include "engine/backend/torch/cpu/argmax_screen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/gguf/round_blocks.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kOuts = 1000, kIn = 512;

struct Screened {
  Screened(QuantizedMatrix w, QuantizedMatrix copy)
      : weights(std::move(w)), screen(std::move(copy), weights) {}
  const QuantizedMatrix weights;
  const ArgmaxScreen screen;
};

// Random weights of Q8_0 or Q6_K. Rows of `equal` are copies of its first one.
Screened screened(QuantType type, const std::vector<int64_t>& equal = {}) {
  std::mt19937_64 random(7);
  QuantizedMatrix weights({{type, kOuts}}, kIn), copy({{QuantType::kQ40, kOuts}}, kIn);
  const BlockFormat& format = *find_block_format(
      static_cast<uint32_t>(type == QuantType::kQ80 ? BlockType::kQ80 : BlockType::kQ6K));
  std::vector<std::byte> bytes(static_cast<size_t>(kIn / format.values * format.bytes)), first;
  std::vector<std::byte> rounded(kIn / 32 * 18);
  std::vector<float> values(kIn);
  for (int64_t row = 0; row < kOuts; ++row) {
    for (std::byte& b : bytes) b = std::byte(random() & 0xff);
    const auto scale = static_cast<_Float16>(1e-3 * static_cast<double>(1 + random() % 4));
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(format.bytes)) {
      std::memcpy(bytes.data() + block + (type == QuantType::kQ80 ? 0 : 208), &scale, 2);
    }
    if (std::ranges::find(equal, row) != equal.end()) {
      if (first.empty()) first = bytes;
      bytes = first;
    }
    weights.pack(row, bytes.data());
    weights.unpack(row, values.data());
    EXPECT_TRUE(round_row(BlockType::kQ40, values, rounded.data(), /*quick=*/true));
    copy.pack(row, rounded.data());
  }
  return {std::move(weights), std::move(copy)};
}

// Rows close to those rows of the weights, whose elements are then the greatest.
std::vector<float> rows_near(const QuantizedMatrix& weights, const std::vector<int64_t>& outs) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> noise(0, 0.01F);
  std::vector<float> x(outs.size() * kIn);
  for (size_t r = 0; r < outs.size(); ++r) {
    weights.unpack(outs[r], x.data() + r * kIn);
    for (size_t i = 0; i < kIn; ++i) x[r * kIn + i] += noise(random);
  }
  return x;
}

// Compares the needed rows of both products of x. Returns the share of the weights that the screen
// read.
double expect_greatest(const Screened& s, const std::vector<float>& x, Columns columns = {},
                       const Norm<float>& norm = {}, std::vector<bool> needed = {}) {
  const auto rows = static_cast<int64_t>(x.size()) / kIn;
  const Rows<float> in{.x = x.data(), .rows = rows, .in = kIn, .norm = norm};
  std::vector<float> want(static_cast<size_t>(rows * kOuts)), got(want.size(), 1e30F);
  product(want.data(), in, s.weights, nullptr);
  if (columns.argmax == 0) columns = {.first = kOuts, .argmax = kOuts};
  needed.resize(static_cast<size_t>(rows), true);
  const double share = s.screen.product(got.data(), in, s.weights, columns);
  for (int64_t r = 0; r < rows; ++r) {
    if (!needed[static_cast<size_t>(r)]) continue;
    const float* const all = want.data() + r * kOuts;
    const bool exact = columns.whole > 0 && r >= columns.whole;
    const float most = *std::max_element(all, all + columns.argmax);
    for (int64_t c = 0; c < (exact ? columns.first : columns.argmax); ++c) {
      const float y = got[static_cast<size_t>(r * kOuts + c)];
      if (exact || all[c] == most || (columns.whole > 0 && c < columns.first)) {
        EXPECT_EQ(y, all[c]) << r << ", " << c;
      } else {
        EXPECT_LT(y, most) << r << ", " << c;
      }
    }
  }
  return share;
}

class ArgmaxScreenOn : public testing::TestWithParam<QuantType> {
 protected:
  void TearDown() override {
    set_team_size(1);
    ASSERT_TRUE(force_target("").ok());
  }
};

INSTANTIATE_TEST_SUITE_P(Types, ArgmaxScreenOn, testing::Values(QuantType::kQ6K, QuantType::kQ80));

TEST_P(ArgmaxScreenOn, FindsTheGreatestOfEachRow) {
  const Screened s = screened(GetParam());
  for (const std::string& target : targets()) {
    ASSERT_TRUE(force_target(target).ok());
    for (const int threads : {1, 3}) {
      set_team_size(threads);
      const double share = expect_greatest(s, rows_near(s.weights, {5, 999, 40, 512}));
      EXPECT_GT(share, 0);
      EXPECT_LT(share, 0.3) << "most panels are left out";
    }
  }
}

TEST_P(ArgmaxScreenOn, ReadsTheWeightsIfManyElementsAreClose) {
  const Screened s = screened(GetParam());
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(3 * kIn);
  for (float& v : x) v = normal(random);
  EXPECT_EQ(expect_greatest(s, x), 1);
  EXPECT_EQ(expect_greatest(s, std::vector<float>(kIn)), 1) << "all elements are 0";
}

TEST_P(ArgmaxScreenOn, FindsAllThatAreEqual) {
  const Screened s = screened(GetParam(), {31, 32, 700});
  EXPECT_LT(expect_greatest(s, rows_near(s.weights, {700})), 0.3);
}

TEST_P(ArgmaxScreenOn, LooksAtTheFirstColumnsAlone) {
  const Screened s = screened(GetParam());
  const auto x = rows_near(s.weights, {40, 300});
  for (const int64_t columns : {1, 40, 41, 64, 300, 999}) {
    expect_greatest(s, x, {.first = columns, .argmax = columns});
  }
}

TEST_P(ArgmaxScreenOn, ComputesTheFirstColumnsOfRowsBehind) {
  const Screened s = screened(GetParam());
  const auto x = rows_near(s.weights, {700, 20, 990, 800});
  for (const int64_t first : {1, 33, 64, 400}) {
    for (const int64_t end : {401, 900, 1000}) {
      const double share = expect_greatest(s, x, {.first = first, .whole = 3, .argmax = end});
      if (end == 1000) EXPECT_LT(share, 0.5);
      if (first == 400 && end == 401) EXPECT_EQ(share, 0) << "the first columns' panels hold all";
    }
  }
}

TEST_P(ArgmaxScreenOn, LeavesOutRowsBehindAWrongDraft) {
  const Screened s = screened(GetParam());
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  auto x = rows_near(s.weights, {70, 500, 0, 900});
  for (size_t i = 2 * kIn; i < 3 * kIn; ++i)
    x[i] = normal(random);  // many of its elements are close
  const auto share = [&](std::vector<int32_t> expected, std::vector<bool> needed) {
    return expect_greatest(s, x, {.first = kOuts, .argmax = kOuts, .expected = expected}, {},
                           std::move(needed));
  };
  EXPECT_GT(share({70, 500, -1, -1}, {}), 0.3);
  EXPECT_LT(share({70, 501, 4, -1}, {true, true, false, false}), 0.2);
  EXPECT_LT(share({71, 500, 4, -1}, {true, false, false, false}), 0.2);
  EXPECT_LT(share({71, 500, -1, -1}, {true, false, false, true}), 0.2) << "another chain begins";
}

TEST_P(ArgmaxScreenOn, NormsRows) {
  const Screened s = screened(GetParam());
  const std::vector<float> weight(kIn, 30.F);
  const auto x = rows_near(s.weights, {8, 900});
  EXPECT_LT(expect_greatest(s, x, {}, {NormKind::kRms, weight.data(), nullptr, 1e-6}), 0.3);
}

TEST_P(ArgmaxScreenOn, LeavesNumbersThatAreNotFiniteToTheProduct) {
  const Screened s = screened(GetParam());
  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
    auto x = rows_near(s.weights, {1, 2});
    x[kIn + 9] = broken;
    const Rows<float> in{.x = x.data(), .rows = 2, .in = kIn};
    std::vector<float> want(2 * kOuts), got(2 * kOuts);
    product(want.data(), in, s.weights, nullptr);
    EXPECT_EQ(s.screen.product(got.data(), in, s.weights, {.first = kOuts, .argmax = kOuts}), 1);
    for (size_t i = 0; i < want.size(); ++i) {
      if (!std::isnan(want[i])) EXPECT_EQ(got[i], want[i]);
      EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i]));
    }
  }
}

TEST(ArgmaxScreen, IsOfOnePartOf6Or8Bits) {
  EXPECT_TRUE(ArgmaxScreen::suits(QuantizedMatrix({{QuantType::kQ80, 64}}, 256)));
  EXPECT_TRUE(ArgmaxScreen::suits(QuantizedMatrix({{QuantType::kQ6K, 64}}, 256)));
  EXPECT_FALSE(ArgmaxScreen::suits(QuantizedMatrix({{QuantType::kQ4K, 64}}, 256)));
  EXPECT_FALSE(
      ArgmaxScreen::suits(QuantizedMatrix({{QuantType::kQ80, 32}, {QuantType::kQ6K, 32}}, 256)));
}

TEST(ScreenShares, BeginWhereScreensPayAndStopWhereTheyDoNot) {
  ScreenShares shares;
  const auto screened = [&](int products, double share) {
    int n = 0;
    for (int i = 0; i < products; ++i) {
      if (!shares.next(2)) continue;
      ++n;
      shares.add(2, share);
    }
    return n;
  };
  EXPECT_EQ(screened(160, 1), 10) << "one in 16";
  EXPECT_LT(screened(300, 0), 30);
  EXPECT_GT(screened(300, 0), 150) << "they pay now";
  EXPECT_EQ(screened(16, 1), 16) << "on average";
  EXPECT_LT(screened(300, 1), 50) << "no longer";
  EXPECT_FALSE(shares.next(1)) << "other numbers of rows are counted apart";
}

TEST(ScreenShares, AreHopelessAfterLong) {
  ScreenShares shares;
  for (int i = 0; i < 128; ++i) shares.add(1, 1);
  EXPECT_FALSE(shares.hopeless());
  shares.add(1, 1);
  EXPECT_TRUE(shares.hopeless());
}

}  // namespace
}  // namespace tandem::cpu
