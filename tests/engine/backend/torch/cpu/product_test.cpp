// CPU products against the definition on every target, and their batch invariance.
#include "engine/backend/torch/cpu/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/cpu/numbers.h"
#include "tests/sanitized.h"

namespace tandem {
namespace {

using cpu::Layout;
using cpu::Norm;
using cpu::PackedMatrix;
using cpu::PreparedRows;
using cpu::Rows;
using cpu::Then;
using cpu::WeightType;

// Everything besides the product itself; disabled by default.
struct More {
  const std::vector<double>* bias = nullptr;
  double eps = 0;
  const std::vector<double>* norm = nullptr;
  Then then = Then::kStore;
  double before = -1;  // initial value of the output
  Activation activation = Activation::kSilu;
  cpu::Columns columns = {};
  const std::vector<double>* added = nullptr;  // with added_row: rows to add before a gate
  std::vector<int32_t> added_row = {};
};

double activated(double x, Activation kind) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
  }
  return x;
}

// For the given rows, computed in O.
template <class O>
std::vector<O> product(const PackedMatrix& w, const std::vector<double>& x, int64_t rows,
                       const More& more = {}) {
  const int64_t outs = more.then == Then::kGate ? w.outs() / 2 : w.outs();
  std::vector<O> out(static_cast<size_t>(rows * outs), static_cast<O>(more.before));
  const auto run = [&]<class A>(A) {
    const auto numbers = [](const std::vector<double>* v) {
      return v != nullptr ? as<A>(*v) : std::vector<A>();
    };
    const auto bias = numbers(more.bias), norm = numbers(more.norm), from = numbers(&x);
    const auto sums = numbers(more.added);
    const cpu::AddedRows<A> added{sums.data(), more.added_row.data()};
    const auto data = [](const std::vector<A>& v) { return v.empty() ? nullptr : v.data(); };
    const auto norm_of = [&](const std::vector<A>& v) {
      return v.empty() ? Norm<A>{} : Norm<A>{NormKind::kRms, v.data(), nullptr, more.eps};
    };
    cpu::product(out.data(), Rows<A>{from.data(), rows, w.in(), norm_of(norm)}, w, data(bias),
                 more.then, more.activation, more.columns,
                 more.added == nullptr ? nullptr : &added);
  };
  if (w.type() == WeightType::kDouble) {
    run(double{});
  } else if constexpr (std::is_same_v<O, float>) {
    run(float{});
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
  void expect_same_bits(Then then);
};

template <class O>
void ProductOn::expect_definition() {
  constexpr int64_t kMaxRows = test::kSanitized ? 33 : 64;
  const bool exact = std::is_same_v<O, double>;
  uint64_t seed = 1;
  // Sizes that no vector divides, and more inputs than one stretch.
  std::vector<Shape> shapes = {{1, 1}, {3, 7}, {33, 31}, {70, 200}, {5, 2050}};
  if (!test::kSanitized) {
    shapes.insert(shapes.end(), {{16, 16}, {47, 64}, {130, 513}, {20, 1025}});
  }
  for (const Shape s : shapes) {
    const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, ++seed));
    const auto bias = as<double>(as<float>(random_numbers(s.outs, ++seed)));
    auto x = random_numbers(kMaxRows * s.in, ++seed);
    if (type() != WeightType::kDouble) x = as<double>(as<float>(x));
    const cpu::RowType meets = cpu::row_type(type());
    const bool rounded = meets == cpu::RowType::kBFloat16;
    // Inputs per scale, and number of steps of the largest magnitude.
    const int64_t block = meets == cpu::RowType::kInt8 ? cpu::kRowBlock : s.in;
    const int most_steps = meets == cpu::RowType::kInt8 ? 127 : 8191;
    // The definition, and the tolerance for rounding.
    std::vector<double> want(static_cast<size_t>(kMaxRows * s.outs)), slack(want.size());
    for (int64_t r = 0; r < kMaxRows; ++r) {
      const double* row = x.data() + r * s.in;
      std::vector<double> half_step(static_cast<size_t>(s.in));  // per input
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
    for (int64_t rows = 1; rows <= kMaxRows; rows = rows == 17 ? kMaxRows : rows + 1) {
      const bool add = rows % 2 == 0;
      const bool biased = rows % 3 != 0;
      const auto got = product<O>(w.packed, x, rows,
                                  {.bias = biased ? &bias : nullptr,
                                   .then = add ? Then::kAdd : Then::kStore,
                                   .before = 1.5});
      for (int64_t i = 0; i < rows * s.outs; ++i) {
        const auto at = static_cast<size_t>(i);
        const double more = (biased ? bias[static_cast<size_t>(i % s.outs)] : 0) + (add ? 1.5 : 0);
        ASSERT_NEAR(got[at], want[at] + more, slack[at])
            << rows << " x " << s.in << " x " << s.outs << " at " << i;
      }
    }
  }
}

TEST_P(ProductOn, MatchesTheDefinition) {
  expect_definition<float>();
  if (type() == WeightType::kDouble) expect_definition<double>();
}

template <class O>
void ProductOn::expect_same_bits(Then then) {
  constexpr int64_t kRows = 40;
  uint64_t seed = 100;
  const std::vector<Shape> shapes = test::kSanitized
                                        ? std::vector<Shape>{{70, 205}, {6, 700}, {18, 1031}}
                                        : std::vector<Shape>{{302, 205}, {6, 700}, {64, 1031}};
  for (const Shape s : shapes) {
    const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, ++seed),
                       then == Then::kGate ? Layout::kPairs : Layout::kInOrder);
    const auto bias = random_numbers(s.outs, ++seed);
    const auto norm = random_numbers(s.in, ++seed);
    const More more{.bias = &bias, .eps = 1e-5, .norm = s.outs > 6 ? &norm : nullptr, .then = then};
    const int64_t outs = then == Then::kGate ? s.outs / 2 : s.outs;
    const auto x = random_numbers(kRows * s.in, ++seed);
    std::vector<O> alone;
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> row(x.begin() + r * s.in, x.begin() + (r + 1) * s.in);
      const auto one = product<O>(w.packed, row, 1, more);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (const int threads : test::kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 5}) {
      cpu::set_team_size(threads);
      for (const int64_t rows :
           test::kSanitized
               ? std::vector<int64_t>{1, 4, 9, 17, 40}
               : std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 17, 28, 29, 40}) {
        // Different row indices and batches each time.
        const int64_t first = (rows * 7 + threads) % kRows;
        std::vector<double> batch;
        for (int64_t r = 0; r < rows; ++r) {
          const auto at = x.begin() + (first + r) % kRows * s.in;
          batch.insert(batch.end(), at, at + s.in);
        }
        const auto together = product<O>(w.packed, batch, rows, more);
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(
              std::memcmp(together.data() + r * outs, alone.data() + (first + r) % kRows * outs,
                          static_cast<size_t>(outs) * sizeof(O)),
              0)
              << "row " << r << " of " << rows << ", " << threads << " threads";
        }
      }
    }
    cpu::set_team_size(1);
  }
}

TEST_P(ProductOn, IsBatchInvariant) {
  for (const Then then : {Then::kStore, Then::kAdd, Then::kGate}) {
    expect_same_bits<float>(then);
    if (type() == WeightType::kDouble) expect_same_bits<double>(then);
  }
}

// Rows from `whole` on need only the first columns; those and all of the rows before have the bits
// of a whole product.
TEST_P(ProductOn, ComputesTheColumnsThatRowsNeed) {
  const Shape s{301, 70};
  const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, 31));
  for (const int threads : {1, 3}) {
    cpu::set_team_size(threads);
    for (const int64_t rows : {1, 5, 12, 40}) {
      const auto x = random_numbers(rows * s.in, 32);
      const auto all = product<float>(w.packed, x, rows);
      for (const int64_t first : {1, 64, 300}) {
        for (const int64_t whole : {int64_t{0}, rows / 2, rows}) {
          const auto some =
              product<float>(w.packed, x, rows, {.columns = {.first = first, .whole = whole}});
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t needed = r < whole ? s.outs : first;
            ASSERT_EQ(std::memcmp(some.data() + r * s.outs, all.data() + r * s.outs,
                                  static_cast<size_t>(needed) * sizeof(float)),
                      0)
                << "row " << r << " of " << rows << ", " << first << " columns, " << whole;
          }
          if (rows < 40 || first == 300 || whole == rows) continue;
          EXPECT_EQ(some.back(), -1) << "the last group of rows lacks the last panel";
        }
      }
    }
    cpu::set_team_size(1);
  }
}

// Single columns have the bits of a whole product, and their panels alone are computed.
TEST_P(ProductOn, ComputesSingleColumns) {
  const Shape s{301, 70};
  const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, 31));
  for (const int threads : {1, 3}) {
    cpu::set_team_size(threads);
    for (const int64_t rows : {1, 5, 12, 40}) {
      const auto x = random_numbers(rows * s.in, 32);
      const auto all = product<float>(w.packed, x, rows);
      for (const std::vector<int32_t>& more : std::vector<std::vector<int32_t>>{
               {300}, {65, 66, 299}, {3, 97, 130, 131, 200, 300}, {}}) {
        const auto some =
            product<float>(w.packed, x, rows, {.columns = {.first = 33, .more = more}});
        size_t left = 0;
        for (size_t i = 0; i < some.size(); ++i) {
          const auto column = static_cast<int32_t>(i % static_cast<size_t>(s.outs));
          const bool needed = column < 33 || std::ranges::find(more, column) != more.end();
          left += some[i] == -1;
          ASSERT_TRUE(some[i] == all[i] || (!needed && some[i] == -1)) << i << " of " << rows;
        }
        const size_t computed = 64 + 64 * more.size();  // panels have at most 64 columns
        EXPECT_GE(left + static_cast<size_t>(rows) * computed, some.size());
      }
    }
    cpu::set_team_size(1);
  }
}

// A fused norm gives the same bits as a separate one.
TEST_P(ProductOn, NormsItsRows) {
  const int64_t rows = 9;
  for (const Shape s : {Shape{50, 33}, {10, 600}}) {
    const TestMatrix w(type(), s.outs, s.in, random_numbers(s.outs * s.in, 21));
    const auto x = as<double>(as<float>(random_numbers(rows * s.in, 22)));
    const auto norm = as<double>(as<float>(random_numbers(s.in, 23)));
    const double eps = 0.5;
    auto normed = x;
    for (int64_t r = 0; r < rows; ++r) {
      double* row = normed.data() + r * s.in;
      double squares = 0;
      for (int64_t k = 0; k < s.in; ++k) squares += row[k] * row[k];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(s.in) + eps);
      for (int64_t k = 0; k < s.in; ++k) row[k] *= scale * norm[static_cast<size_t>(k)];
    }
    // Rounding to int16 may differ at ties.
    const double slack = type() == WeightType::kInt8 ? 0.05 : 1e-3;
    for (const int64_t n : {int64_t{1}, rows}) {
      const auto got = product<float>(w.packed, x, n, {.eps = eps, .norm = &norm});
      const auto want = product<float>(w.packed, normed, n);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], slack) << i;
    }
  }
}

TEST_P(ProductOn, GatesTheSecondHalfByTheFirst) {
  for (const Shape s : {Shape{2, 3}, {32, 16}, {70, 513}, {130, 1200}}) {
    const auto numbers = random_numbers(s.outs * s.in, 31);
    const TestMatrix pairs(type(), s.outs, s.in, numbers, Layout::kPairs);
    const TestMatrix plain(type(), s.outs, s.in, numbers);
    const auto bias = as<double>(as<float>(random_numbers(s.outs, 32)));
    const int64_t half = s.outs / 2;
    for (const int64_t rows : {1, 2, 5, 14, 31}) {
      const auto x = as<double>(as<float>(random_numbers(rows * s.in, 33)));
      for (const auto* b : {&bias, static_cast<const std::vector<double>*>(nullptr)}) {
        const auto both = product<float>(plain.packed, x, rows, {.bias = b});
        for (const Activation kind :
             {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
          const auto got = product<float>(pairs.packed, x, rows,
                                          {.bias = b, .then = Then::kGate, .activation = kind});
          ASSERT_EQ(got.size(), static_cast<size_t>(rows * half));
          for (int64_t i = 0; i < rows * half; ++i) {
            const double gate = both[static_cast<size_t>(i / half * s.outs + i % half)];
            const double up = both[static_cast<size_t>(i / half * s.outs + half + i % half)];
            const double want = activated(gate, kind) * up;
            // The bias may be added before or after partial sums of magnitude 10 to 100.
            const double slack = 1e-5 * (1 + std::abs(gate) + std::abs(up));
            ASSERT_NEAR(got[static_cast<size_t>(i)], want, slack) << i;
          }
        }
      }
    }
  }
}

// Rows without an addition keep their bits; the others are gated after it.
TEST_P(ProductOn, AddsToSomeRowsBeforeTheGate) {
  for (const Shape s : {Shape{2, 3}, {32, 16}, {70, 513}, {130, 1200}}) {
    const auto numbers = random_numbers(s.outs * s.in, 41);
    const TestMatrix pairs(type(), s.outs, s.in, numbers, Layout::kPairs);
    const TestMatrix plain(type(), s.outs, s.in, numbers);
    const auto bias = as<double>(as<float>(random_numbers(s.outs, 42)));
    const int64_t half = s.outs / 2;
    for (const int threads : {1, 3}) {
      cpu::set_team_size(threads);
      for (const int64_t rows : {1, 2, 5, 31}) {
        const auto x = as<double>(as<float>(random_numbers(rows * s.in, 43)));
        const auto added = as<double>(as<float>(random_numbers(rows * s.outs, 44)));
        More more{.bias = &bias, .then = Then::kGate};
        const auto without = product<float>(pairs.packed, x, rows, more);
        more.added = &added;
        for (int64_t r = 0; r < rows; ++r) {
          more.added_row.push_back(r % 3 == 1 ? -1 : static_cast<int32_t>(rows - 1 - r));
        }
        const auto got = product<float>(pairs.packed, x, rows, more);
        const auto both = product<float>(plain.packed, x, rows, {.bias = &bias});
        for (int64_t i = 0; i < rows * half; ++i) {
          const int64_t row = i / half, column = i % half;
          const int32_t from = more.added_row[static_cast<size_t>(row)];
          if (from < 0) {
            ASSERT_EQ(got[static_cast<size_t>(i)], without[static_cast<size_t>(i)]) << i;
            continue;
          }
          const auto sum = [&](int64_t c) {
            return static_cast<double>(both[static_cast<size_t>(row * s.outs + c)]) +
                   added[static_cast<size_t>(from * s.outs + c)];
          };
          const double gate = sum(column), up = sum(half + column);
          const double slack = 1e-5 * (1 + std::abs(gate)) * (1 + std::abs(up));
          ASSERT_NEAR(got[static_cast<size_t>(i)], activated(gate, Activation::kSilu) * up, slack)
              << i;
        }
      }
      cpu::set_team_size(1);
    }
  }
}

// NaN stays in its row.
TEST_P(ProductOn, NaNStaysInItsRow) {
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
  const auto got = product<float>(w.packed, std::vector<double>(90, 0.0), 3, {.bias = &bias});
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<float>(bias[i % 20]));
}

INSTANTIATE_TEST_SUITE_P(Targets, ProductOn,
                         testing::Combine(testing::ValuesIn(cpu::targets()),
                                          testing::ValuesIn(kWeightTypes)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  type_name(std::get<1>(info.param));
                         });

// The row type follows from the target's instructions.
TEST(Product, RowTypeFollowsFromTheTarget) {
  for (const std::string& target : cpu::targets()) {
    ASSERT_TRUE(cpu::force_target(target).ok());
    const bool bf16 = target == "AVX3_BF16";
    const bool vnni = bf16 || target == "AVX3_GFNI" || target == "AVX3_VNNI";
    using cpu::RowType;
    EXPECT_EQ(cpu::row_type(WeightType::kBFloat16), bf16 ? RowType::kBFloat16 : RowType::kFloat);
    EXPECT_EQ(cpu::row_type(WeightType::kInt8), vnni ? RowType::kInt8 : RowType::kInt16);
    EXPECT_EQ(cpu::row_type(WeightType::kFloat), RowType::kFloat);
    EXPECT_EQ(cpu::row_type(WeightType::kHalf), RowType::kFloat);
    EXPECT_EQ(cpu::row_type(WeightType::kDouble), RowType::kDouble);
  }
  ASSERT_TRUE(cpu::force_target("").ok());
}

// Products of several types alternate on a thread. None uses another's prepared rows.
TEST(Product, TypesDoNotSharePreparedRows) {
  const TestMatrix whole(WeightType::kDouble, 24, 40, random_numbers(960, 1));
  const TestMatrix narrow(WeightType::kInt8, 24, 40, random_numbers(960, 2));
  const auto a = random_numbers(80, 3);
  const auto b = as<double>(as<float>(random_numbers(80, 4)));
  const auto of_whole = [&] { return product<double>(whole.packed, a, 2); };
  const auto of_narrow = [&] { return product<float>(narrow.packed, b, 2); };
  // On a new thread, so that these are its first calls.
  const auto on_thread = [](const auto& f) { std::thread(f).join(); };
  std::vector<double> want_whole, got_whole;
  std::vector<float> want_narrow, got_narrow;
  on_thread([&] { want_whole = of_whole(); });
  on_thread([&] { want_narrow = of_narrow(); });
  on_thread([&] { of_whole(), got_narrow = of_narrow(); });
  on_thread([&] { of_narrow(), got_whole = of_whole(); });
  EXPECT_EQ(got_narrow, want_narrow);
  EXPECT_EQ(got_whole, want_whole);
}

// Maximal sums of int8 x int8 and int8 x int16.
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

// Rows shared by threads, filled in separate groups.
TEST(Product, RowsArePreparedInPieces) {
  const auto x = as<float>(random_numbers(40 * 51, 11));
  const Rows<float> rows{x.data(), 40, 51};
  using cpu::RowType;
  for (const RowType type :
       {RowType::kFloat, RowType::kBFloat16, RowType::kInt16, RowType::kInt8}) {
    PreparedRows whole, pieces;
    whole.prepare(type, rows);
    pieces.shape(type, 40, 51);
    ASSERT_GT(pieces.groups(), 2);
    pieces.fill(rows, 1, pieces.groups());
    pieces.fill(rows, 0, 1);
    const int64_t words = type == RowType::kFloat  ? 51
                          : type == RowType::kInt8 ? cpu::quantized_row_size(51)
                                                   : 26;
    EXPECT_EQ(std::memcmp(whole.group(0), pieces.group(0), static_cast<size_t>(40 * words * 4)), 0);
    for (int r = 0; type == RowType::kInt16 && r < 40; ++r) {
      EXPECT_EQ(whole.scales()[r], pieces.scales()[r]);
    }
  }
}

TEST(ProductDeathTest, RejectsMismatchedOperands) {
  const auto x = as<float>(random_numbers(6 * 50, 11));
  std::vector<float> out(1000);
  const Rows<float> rows{x.data(), 6, 50};
  const float* no_bias = nullptr;
  const TestMatrix other_in(WeightType::kFloat, 30, 49, random_numbers(30 * 49, 12));
  EXPECT_DEATH(cpu::product(out.data(), rows, other_in.packed, no_bias), "in\\(\\)");
  const TestMatrix doubles(WeightType::kDouble, 30, 50, random_numbers(1500, 12));
  EXPECT_DEATH(cpu::product(out.data(), rows, doubles.packed, no_bias), "kDouble");
  const TestMatrix wide(WeightType::kFloat, 30, 50, random_numbers(1500, 12));
  EXPECT_DEATH(cpu::product(out.data(), rows, wide.packed, no_bias, Then::kGate), "kPairs");
  if (cpu::targets().size() < 2) return;
  ASSERT_TRUE(cpu::force_target("EMU128").ok());
  EXPECT_DEATH(cpu::product(out.data(), rows, wide.packed, no_bias), "columns");
  ASSERT_TRUE(cpu::force_target("").ok());
}

}  // namespace
}  // namespace tandem
