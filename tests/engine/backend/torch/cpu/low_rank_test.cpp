// Low-rank additions against the definition on every target, and their batch invariance.
#include "engine/backend/torch/cpu/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/cpu/weight_memory.h"
#include "tests/engine/backend/torch/cpu/numbers.h"

namespace tandem {
namespace {

using cpu::LowRankLayer;
using cpu::LowRankRows;
using cpu::Rows;
using cpu::WeightType;

constexpr WeightType kTypes[] = {WeightType::kFloat, WeightType::kBFloat16, WeightType::kHalf};

// The numbers as the type holds them, and their bytes.
std::vector<std::byte> rounded(WeightType type, std::vector<double>& numbers) {
  std::vector<std::byte> all;
  const auto put = [&](const auto& bits) {
    const auto* const at = reinterpret_cast<const std::byte*>(&bits);
    all.insert(all.end(), at, at + sizeof(bits));
  };
  for (double& x : numbers) {
    if (type == WeightType::kDouble) {
      put(x);
    } else if (type == WeightType::kFloat) {
      x = static_cast<float>(x);
      put(static_cast<float>(x));
    } else if (type == WeightType::kBFloat16) {
      put(bfloat_bits(x));
      x = bfloat(x);
    } else {
      put(static_cast<_Float16>(x));
      x = static_cast<_Float16>(x);
    }
  }
  return all;
}

// An adapter of a layer with these columns; a rank of 0 leaves columns as they are.
struct Adapter {
  Adapter(WeightType type, int64_t in, const std::vector<int64_t>& columns,
          const std::vector<int64_t>& ranks, uint64_t seed, WeightType type_of_b) {
    layer.type = type;
    layer.in = in;
    layer.ranks = std::accumulate(ranks.begin(), ranks.end(), int64_t{0});
    const int64_t of_a = low_rank_a_bytes(type, layer.ranks, in);
    int64_t bytes = of_a;
    for (size_t i = 0; i < columns.size(); ++i) {
      bytes += low_rank_b_bytes(type_of_b, columns[i], ranks[i]);
    }
    memory = cpu::allocate_apart(static_cast<size_t>(bytes));
    std::memset(memory.get(), 0, static_cast<size_t>(bytes));
    a = random_numbers(layer.ranks * in, seed);
    const std::vector<std::byte> numbers = rounded(type, a);
    // In two pieces.
    const int64_t row = static_cast<int64_t>(numbers.size()) / layer.ranks, some = layer.ranks / 2;
    pack_low_rank_a(memory.get(), type, in, 0, some, numbers.data());
    pack_low_rank_a(memory.get(), type, in, some, layer.ranks - some, numbers.data() + some * row);
    std::byte* next = memory.get() + of_a;
    int64_t rank = 0, column = 0;
    for (size_t i = 0; i < columns.size(); ++i) {
      LowRankLayer::Matrix m{.type = type_of_b,
                             .rank = ranks[i],
                             .first_rank = rank,
                             .first_column = column,
                             .columns = columns[i],
                             .scale = 0.75 + static_cast<double>(i)};
      b.push_back(random_numbers(m.columns * m.rank, seed + 100 + i));
      const std::vector<std::byte> own = rounded(type_of_b, b.back());
      if (m.rank > 0) {
        pack_low_rank_b(next, type_of_b, m.rank, 0, m.columns, own.data());
        m.b = next;
        next += low_rank_b_bytes(type_of_b, m.columns, m.rank);
      }
      rank += m.rank;
      column += m.columns;
      layer.matrices.push_back(m);
    }
    layer.a = memory.get();
    layer.end = next;
    EXPECT_EQ(next - memory.get(), bytes);
  }
  Adapter(WeightType type, int64_t in, const std::vector<int64_t>& columns,
          const std::vector<int64_t>& ranks, uint64_t seed)
      : Adapter(type, in, columns, ranks, seed, type) {}

  // [columns]
  std::vector<double> additions(const double* x) const {
    std::vector<double> inner(static_cast<size_t>(layer.ranks)), y;
    for (size_t r = 0; r < inner.size(); ++r) {
      for (size_t k = 0; k < static_cast<size_t>(layer.in); ++k) {
        inner[r] += a[r * static_cast<size_t>(layer.in) + k] * x[k];
      }
    }
    for (size_t i = 0; i < b.size(); ++i) {
      const LowRankLayer::Matrix& m = layer.matrices[i];
      for (int64_t c = 0; c < m.columns; ++c) {
        double sum = 0;
        for (int64_t r = 0; r < m.rank; ++r) {
          sum += b[i][static_cast<size_t>(c * m.rank + r)] *
                 inner[static_cast<size_t>(m.first_rank + r)];
        }
        y.push_back(m.scale * sum);
      }
    }
    return y;
  }

  LowRankLayer layer;
  cpu::WeightMemory memory;
  std::vector<double> a;               // [ranks, in]
  std::vector<std::vector<double>> b;  // [columns, rank] each
};

class LowRankProducts : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_target(GetParam()).ok()); }
  void TearDown() override {
    cpu::set_team_size(1);
    ASSERT_TRUE(cpu::force_target("").ok());
  }
};

template <class T>
void expect_definition(WeightType type, double error) {
  struct Shape {
    int64_t in;
    std::vector<int64_t> columns, ranks;
  };
  const Shape shapes[] = {{1, {1}, {1}},
                          {31, {5, 33}, {3, 0}},
                          {32, {32}, {4}},
                          {100, {40, 7, 64}, {5, 1, 2}},
                          {576, {576, 192, 192}, {16, 16, 16}},
                          {577, {70, 31}, {0, 17}}};
  uint64_t seed = 1;
  for (const auto& [in, columns, ranks] : shapes) {
    const Adapter adapter(type, in, columns, ranks, ++seed);
    const int64_t width = std::accumulate(columns.begin(), columns.end(), int64_t{0});
    // More rows than a thread takes at once. Every other one has the adapter.
    constexpr int64_t kRows = 38;
    std::vector<double> x = random_numbers(kRows * in, ++seed);
    const std::vector<T> narrow = as<T>(x);
    x = as<double>(narrow);
    std::vector<int64_t> own;
    for (int64_t r = 0; r < kRows; r += 2) own.push_back(r);
    const std::vector<LowRankRows> groups{
        {&adapter.layer, own.data(), static_cast<int64_t>(own.size())}};
    const Rows<T> rows{.x = narrow.data(), .rows = kRows, .in = in};
    std::vector<T> to(static_cast<size_t>(kRows * width), T{2});
    std::vector<T> sums(own.size() * static_cast<size_t>(width), T{9});
    add_low_rank(to.data(), width, rows, groups);
    low_rank_sums(sums.data(), width, rows, groups);
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> want = adapter.additions(x.data() + r * in);
      for (int64_t c = 0; c < width; ++c) {
        const auto got = static_cast<double>(to[static_cast<size_t>(r * width + c)]);
        if (r % 2 == 1) {
          ASSERT_EQ(got, 2);
          continue;
        }
        const double expected = want[static_cast<size_t>(c)];
        const double slack = error * std::sqrt(static_cast<double>(in)) * 20;
        ASSERT_NEAR(got, 2 + expected, slack) << in << ", row " << r << ", column " << c;
        const T sum = sums[static_cast<size_t>(r / 2 * width + c)];
        ASSERT_NEAR(static_cast<double>(sum), expected, slack);
      }
    }
  }
}

TEST_P(LowRankProducts, EqualTheDefinition) {
  for (const WeightType type : kTypes) {
    SCOPED_TRACE(type_name(type));
    expect_definition<float>(type, 1e-5);
  }
  expect_definition<double>(WeightType::kDouble, 1e-13);
}

TEST_P(LowRankProducts, ReadNormedRows) {
  constexpr int64_t kIn = 70, kRows = 3;
  const Adapter adapter(WeightType::kBFloat16, kIn, {50}, {3}, 5);
  const std::vector<float> x = as<float>(random_numbers(kRows * kIn, 6));
  const std::vector<float> weight = as<float>(random_numbers(kIn, 7));
  const cpu::Norm<float> norm{NormKind::kRms, weight.data(), nullptr, 1e-3};
  std::vector<float> normed(x.size());
  for (int64_t r = 0; r < kRows; ++r) {
    norm_row(normed.data() + r * kIn, x.data() + r * kIn, norm, kIn);
  }
  const std::vector<int64_t> all{0, 1, 2};
  const std::vector<LowRankRows> groups{{&adapter.layer, all.data(), kRows}};
  std::vector<float> got(kRows * 50), want(kRows * 50);
  low_rank_sums(got.data(), 50, Rows<float>{x.data(), kRows, kIn, norm}, groups);
  low_rank_sums(want.data(), 50, Rows<float>{normed.data(), kRows, kIn}, groups);
  EXPECT_EQ(got, want);
}

// The numbers of 16 bits, widened to fp32, give the same bits.
TEST_P(LowRankProducts, WideningIsExact) {
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kHalf}) {
    const Adapter narrow(type, 321, {90, 20}, {7, 5}, 11);
    Adapter wide(WeightType::kFloat, 321, {90, 20}, {7, 5}, 11);
    // The same numbers as `narrow`.
    const std::vector<float> a = as<float>(narrow.a);
    pack_low_rank_a(wide.memory.get(), WeightType::kFloat, 321, 0, 12, a.data());
    for (size_t i = 0; i < 2; ++i) {
      const LowRankLayer::Matrix& m = wide.layer.matrices[i];
      pack_low_rank_b(const_cast<std::byte*>(m.b), WeightType::kFloat, m.rank, 0, m.columns,
                      as<float>(narrow.b[i]).data());
    }
    const std::vector<float> x = as<float>(random_numbers(2 * 321, 12));
    const std::vector<int64_t> rows{0, 1};
    std::vector<float> sums[2] = {std::vector<float>(220), std::vector<float>(220)};
    for (const Adapter* const adapter : {&narrow, &std::as_const(wide)}) {
      low_rank_sums(sums[adapter == &narrow ? 0 : 1].data(), 110, Rows<float>{x.data(), 2, 321},
                    std::vector<LowRankRows>{{&adapter->layer, rows.data(), 2}});
    }
    EXPECT_EQ(sums[0], sums[1]) << type_name(type);
  }
}

// Alone, and among rows of adapters of other types, in every share of the work.
TEST_P(LowRankProducts, BitsDependOnTheRowAlone) {
  constexpr int64_t kIn = 500, kWidth = 450, kRows = 41;
  const std::vector<int64_t> columns{300, 100, 50}, ranks{17, 8, 4};
  std::vector<Adapter> adapters;
  for (size_t i = 0; i < 3; ++i) adapters.emplace_back(kTypes[i], kIn, columns, ranks, 20 + i);
  adapters.emplace_back(WeightType::kFloat, kIn, columns, std::vector<int64_t>{9, 0, 3}, 30,
                        WeightType::kBFloat16);
  const std::vector<float> x = as<float>(random_numbers(kRows * kIn, 40));
  const std::vector<float> before = as<float>(random_numbers(kRows * kWidth, 41));
  const auto adapter_of = [&](int64_t r, int64_t step) {
    return static_cast<size_t>(r * step % 5);  // the fifth: none
  };
  for (const int64_t step : {1, 2, 5}) {
    std::vector<float> want = before;
    for (int64_t r = 0; r < kRows; ++r) {
      if (adapter_of(r, step) == 4) continue;
      const int64_t zero = 0;
      add_low_rank(want.data() + r * kWidth, kWidth, Rows<float>{x.data() + r * kIn, 1, kIn},
                   std::vector<LowRankRows>{{&adapters[adapter_of(r, step)].layer, &zero, 1}});
    }
    std::vector<std::vector<int64_t>> rows(4);
    for (int64_t r = 0; r < kRows; ++r) {
      if (adapter_of(r, step) < 4) rows[adapter_of(r, step)].push_back(r);
    }
    std::vector<LowRankRows> groups;
    for (size_t i = 4; i-- > 0;) {
      if (rows[i].empty()) continue;
      groups.push_back({&adapters[i].layer, rows[i].data(), static_cast<int64_t>(rows[i].size())});
    }
    for (const int threads : {1, 2, 3, 5, 16}) {
      cpu::set_team_size(threads);
      std::vector<float> got = before;
      add_low_rank(got.data(), kWidth, Rows<float>{x.data(), kRows, kIn}, groups);
      EXPECT_EQ(got, want) << threads << " threads, step " << step;
      size_t of_sum = 0;
      std::vector<float> sums(kRows * kWidth, 7);
      low_rank_sums(sums.data(), kWidth, Rows<float>{x.data(), kRows, kIn}, groups);
      std::vector<float> alone(kWidth);
      for (const LowRankRows& group : groups) {
        for (int64_t i = 0; i < group.n; ++i, ++of_sum) {
          const int64_t zero = 0;
          low_rank_sums(alone.data(), kWidth, Rows<float>{x.data() + group.rows[i] * kIn, 1, kIn},
                        std::vector<LowRankRows>{{group.layer, &zero, 1}});
          ASSERT_EQ(
              std::memcmp(alone.data(), sums.data() + of_sum * kWidth, kWidth * sizeof(float)), 0);
        }
      }
      cpu::set_team_size(1);
    }
  }
}

// Zeros fill the last block: a row that is not finite stays in its sums.
TEST_P(LowRankProducts, NumbersThatAreNotFiniteStayInTheirRow) {
  const Adapter adapter(WeightType::kHalf, 33, {40}, {2}, 50);
  std::vector<float> x = as<float>(random_numbers(2 * 33, 51));
  x[32] = std::numeric_limits<float>::infinity();
  const std::vector<int64_t> rows{0, 1};
  std::vector<float> sums(80);
  low_rank_sums(sums.data(), 40, Rows<float>{x.data(), 2, 33},
                std::vector<LowRankRows>{{&adapter.layer, rows.data(), 2}});
  for (size_t i = 0; i < 80; ++i) EXPECT_EQ(std::isfinite(sums[i]), i >= 40) << i;
}

INSTANTIATE_TEST_SUITE_P(Targets, LowRankProducts, testing::ValuesIn(cpu::targets()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
