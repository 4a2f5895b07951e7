// The CPU's products against the definition on every processor they were compiled for, and their
// promise about bits.
#include "engine/backend/torch/cpu/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/cpu/numbers.h"

namespace tandem {
namespace {

using cpu::PackedMatrix;
using cpu::PreparedRows;
using cpu::WeightType;

// rows x outs numbers, computed in O of rows x in.
template <class O>
std::vector<O> product(const PackedMatrix& w, const std::vector<double>& x, int64_t rows,
                       const std::vector<double>* bias = nullptr, const O* added_to = nullptr) {
  const auto outs = static_cast<size_t>(w.outs());
  std::vector<O> out(static_cast<size_t>(rows) * outs, added_to != nullptr ? *added_to : O{-1});
  const bool add = added_to != nullptr;
  PreparedRows prepared;
  if (w.type() == WeightType::kDouble) {
    prepared.prepare(x.data(), rows, w.in());
    cpu::product(out.data(), prepared, w, bias != nullptr ? bias->data() : nullptr, add);
  } else if constexpr (std::is_same_v<O, float>) {
    const std::vector<float> narrow = as<float>(x);
    std::vector<float> narrow_bias;
    if (bias != nullptr) narrow_bias = as<float>(*bias);
    prepared.prepare(cpu::row_type(w.type()), narrow.data(), rows, w.in());
    cpu::product(out.data(), prepared, w, bias != nullptr ? narrow_bias.data() : nullptr, add);
  }
  return out;
}

struct Shape {
  int64_t outs, in;
};

class ProductOn : public testing::TestWithParam<std::tuple<std::string, WeightType>> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_target(std::get<0>(GetParam())).ok()); }
  void TearDown() override {
    cpu::set_team_size(1);
    ASSERT_TRUE(cpu::force_target("").ok());
  }
  WeightType type() const { return std::get<1>(GetParam()); }

  template <class O>
  void expect_definition();
  template <class O>
  void expect_same_bits();
};

template <class O>
void ProductOn::expect_definition() {
  constexpr int64_t kMostRows = 64;
  const bool exact = std::is_same_v<O, double>;
  uint64_t seed = 1;
  // Outputs and inputs that no vector divides, and more inputs than one stretch has.
  for (const Shape s : {Shape{1, 1},
                        {3, 7},
                        {16, 16},
                        {33, 31},
                        {47, 64},
                        {70, 200},
                        {130, 513},
                        {20, 1025},
                        {5, 2050}}) {
    const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, ++seed));
    const auto bias = as<double>(as<float>(random_numbers(s.outs, ++seed)));
    auto x = random_numbers(kMostRows * s.in, ++seed);
    if (type() != WeightType::kDouble) x = as<double>(as<float>(x));
    const cpu::RowType meets = cpu::row_type(type());
    const bool rounded = meets == cpu::RowType::kBFloat16;
    // Inputs of a row that share a scale, and how many steps the greatest of them has.
    const int64_t block = meets == cpu::RowType::kInt8 ? cpu::kRowBlock : s.in;
    const int most_steps = meets == cpu::RowType::kInt8 ? 127 : 8191;
    // The definition, and what rounding may make of it.
    std::vector<double> want(static_cast<size_t>(kMostRows * s.outs)), slack(want.size());
    for (int64_t r = 0; r < kMostRows; ++r) {
      const double* row = x.data() + r * s.in;
      std::vector<double> half_step(static_cast<size_t>(s.in));  // of each input
      for (int64_t k = 0; k < s.in; ++k) {
        double most = 0;
        const int64_t first = k / block * block;
        for (int64_t j = first; j < std::min(s.in, first + block); ++j) {
          most = std::fmax(most, std::abs(row[j]));
        }
        half_step[static_cast<size_t>(k)] = most / most_steps * 0.501;
      }
      for (int64_t n = 0; n < s.outs; ++n) {
        const auto i = static_cast<size_t>(r * s.outs + n);
        double magnitude = 2;
        double lost = 0;
        for (int64_t k = 0; k < s.in; ++k) {
          const double weight = w.values[static_cast<size_t>(n * s.in + k)];
          const double number = rounded ? bfloat(row[k]) : row[k];
          want[i] += number * weight;
          magnitude += std::abs(number * weight);
          lost += half_step[static_cast<size_t>(k)] * std::abs(weight);
        }
        slack[i] = magnitude * (exact ? 1e-14 : 2e-6);
        if (type() == WeightType::kInt8) slack[i] += lost;
      }
    }
    for (int64_t rows = 1; rows <= kMostRows; rows = rows == 17 ? kMostRows : rows + 1) {
      const bool add = rows % 2 == 0;
      const bool biased = rows % 3 != 0;
      const O before{1.5};
      const auto got =
          product<O>(w.packed, x, rows, biased ? &bias : nullptr, add ? &before : nullptr);
      for (int64_t i = 0; i < rows * s.outs; ++i) {
        const auto at = static_cast<size_t>(i);
        const double more = (biased ? bias[static_cast<size_t>(i % s.outs)] : 0) + (add ? 1.5 : 0);
        ASSERT_NEAR(got[at], want[at] + more, slack[at])
            << rows << " x " << s.in << " x " << s.outs << " at " << i;
      }
    }
  }
}

TEST_P(ProductOn, IsTheDefinition) {
  expect_definition<float>();
  if (type() == WeightType::kDouble) expect_definition<double>();
}

template <class O>
void ProductOn::expect_same_bits() {
  constexpr int64_t kRows = 40;
  uint64_t seed = 100;
  for (const Shape s : {Shape{301, 205}, {5, 700}, {64, 1031}}) {
    const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, ++seed));
    const auto bias = random_numbers(s.outs, ++seed);
    const auto x = random_numbers(kRows * s.in, ++seed);
    std::vector<O> alone;
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> row(x.begin() + r * s.in, x.begin() + (r + 1) * s.in);
      const auto one = product<O>(w.packed, row, 1, &bias);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (const int threads : {1, 2, 3, 5}) {
      cpu::set_team_size(threads);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 17, 28, 29, 40}) {
        // Other places and other neighbours each time.
        const int64_t first = (rows * 7 + threads) % kRows;
        std::vector<double> batch;
        for (int64_t r = 0; r < rows; ++r) {
          const auto at = x.begin() + (first + r) % kRows * s.in;
          batch.insert(batch.end(), at, at + s.in);
        }
        const auto together = product<O>(w.packed, batch, rows, &bias);
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(
              std::memcmp(together.data() + r * s.outs, alone.data() + (first + r) % kRows * s.outs,
                          static_cast<size_t>(s.outs) * sizeof(O)),
              0)
              << "row " << r << " of " << rows << ", " << threads << " threads";
        }
      }
    }
    cpu::set_team_size(1);
  }
}

TEST_P(ProductOn, ARowHasTheSameBitsInAnyCompany) {
  expect_same_bits<float>();
  if (type() == WeightType::kDouble) expect_same_bits<double>();
}

// What is not a number stays in its row.
TEST_P(ProductOn, NotANumberStaysInItsRow) {
  const int64_t in = 100;
  const int64_t outs = 40;
  const TestMatrix w(type(), outs, in, random_numbers(outs * in, 7));
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const int64_t k : {int64_t{0}, in - 1}) {
      auto x = random_numbers(5 * in, 8);
      const auto before = product<float>(w.packed, x, 5);
      x[static_cast<size_t>(3 * in + k)] = bad;
      const auto after = product<float>(w.packed, x, 5);
      for (int64_t i = 0; i < 5 * outs; ++i) {
        const auto at = static_cast<size_t>(i);
        if (i / outs == 3) {
          EXPECT_FALSE(std::isfinite(after[at])) << i;
        } else {
          EXPECT_EQ(after[at], before[at]) << i;
        }
      }
    }
  }
}

TEST_P(ProductOn, RowsOfZerosGiveTheBias) {
  const TestMatrix w(type(), 20, 30, random_numbers(600, 9));
  const auto bias = as<double>(as<float>(random_numbers(20, 10)));
  const auto got = product<float>(w.packed, std::vector<double>(90, 0.0), 3, &bias);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<float>(bias[i % 20]));
}

INSTANTIATE_TEST_SUITE_P(Targets, ProductOn,
                         testing::Combine(testing::ValuesIn(cpu::targets()),
                                          testing::ValuesIn(kWeightTypes)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  type_name(std::get<1>(info.param));
                         });

// What a processor multiplies, its products use.
TEST(Product, RowsAreOfTheTypeThatTheTargetMultiplies) {
  for (const std::string& target : cpu::targets()) {
    ASSERT_TRUE(cpu::force_target(target).ok());
    const bool bf16 = target == "AVX3_BF16";
    const bool vnni = bf16 || target == "AVX3_VNNI";
    using cpu::RowType;
    EXPECT_EQ(cpu::row_type(WeightType::kBFloat16), bf16 ? RowType::kBFloat16 : RowType::kFloat);
    EXPECT_EQ(cpu::row_type(WeightType::kInt8), vnni ? RowType::kInt8 : RowType::kInt16);
    EXPECT_EQ(cpu::row_type(WeightType::kFloat), RowType::kFloat);
    EXPECT_EQ(cpu::row_type(WeightType::kHalf), RowType::kFloat);
    EXPECT_EQ(cpu::row_type(WeightType::kDouble), RowType::kDouble);
  }
  ASSERT_TRUE(cpu::force_target("").ok());
}

// The greatest sums that int8 times int8 or int16 can have.
TEST(Product, Int8SumsDoNotOverflow) {
  for (const std::string& target : cpu::targets()) {
    ASSERT_TRUE(cpu::force_target(target).ok());
    const int64_t in = 5000;
    const TestMatrix w(WeightType::kInt8, 3, in, std::vector<double>(3 * in, -2.0));
    for (const int64_t rows : {1, 4}) {
      const auto got = product<float>(w.packed, std::vector<double>(rows * in, 3.0), rows);
      for (const float v : got) EXPECT_NEAR(v, -6.0 * in, 0.01) << target;
    }
    ASSERT_TRUE(cpu::force_target("").ok());
  }
}

// One preparation serves several products.
TEST(Product, PreparedRowsAreShared) {
  const auto x = as<float>(random_numbers(6 * 50, 11));
  PreparedRows prepared;
  prepared.prepare(cpu::RowType::kFloat, x.data(), 6, 50);
  for (const WeightType type : {WeightType::kFloat, WeightType::kHalf}) {
    ASSERT_EQ(cpu::row_type(type), cpu::RowType::kFloat);
    const TestMatrix w(type, 30, 50, random_numbers(1500, 12));
    std::vector<float> out(180);
    cpu::product(out.data(), prepared, w.packed, static_cast<const float*>(nullptr), false);
    EXPECT_EQ(out, product<float>(w.packed, as<double>(x), 6)) << type_name(type);
  }
}

TEST(ProductDeathTest, RefusesOperandsThatDoNotBelongTogether) {
  const auto x = as<float>(random_numbers(6 * 50, 11));
  std::vector<float> out(1000);
  PreparedRows prepared;
  prepared.prepare(cpu::RowType::kFloat, x.data(), 6, 50);
  const float* no_bias = nullptr;
  const TestMatrix other_in(WeightType::kFloat, 30, 49, random_numbers(30 * 49, 12));
  EXPECT_DEATH(cpu::product(out.data(), prepared, other_in.packed, no_bias, false), "in\\(\\)");
  const TestMatrix bytes(WeightType::kInt8, 30, 50, random_numbers(1500, 12));
  EXPECT_DEATH(cpu::product(out.data(), prepared, bytes.packed, no_bias, false), "row_type");
  if (cpu::targets().size() < 2) return;
  const TestMatrix wide(WeightType::kFloat, 30, 50, random_numbers(1500, 12));
  ASSERT_TRUE(cpu::force_target("EMU128").ok());
  EXPECT_DEATH(cpu::product(out.data(), prepared, wide.packed, no_bias, false), "columns");
  ASSERT_TRUE(cpu::force_target("").ok());
}

}  // namespace
}  // namespace tandem
