// The CPU kernel against the definition, and its promise about bits.
#include "engine/backend/torch/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tandem {
namespace {

// A few rows with random visibility over random keys, laid out in pages of some size.
struct Case {
  int heads, kv_heads, head_dim, page_rows;
  int rows = 5;
  int cache_rows = 40;
  std::vector<int32_t> position, table, first_key, dense_end, extra_begin, extra_end, extra, pages;
  std::vector<int64_t> slot;
  std::vector<double> qkv;   // [rows, (heads + 2 kv_heads) * head_dim]
  std::vector<double> k, v;  // [cache_rows, kv_heads, head_dim]

  Case(int h, int kvh, int d, int pr, uint64_t seed)
      : heads(h), kv_heads(kvh), head_dim(d), page_rows(pr) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < rows * (h + 2 * kvh) * d; ++i) qkv.push_back(normal(random));
    for (int i = 0; i < cache_rows * kvh * d; ++i) {
      k.push_back(normal(random));
      v.push_back(normal(random));
    }
    for (int r = 0; r < rows; ++r) {
      position.push_back(0);
      slot.push_back(0);
      table.push_back(0);
      first_key.push_back(static_cast<int>(random() % 5));
      dense_end.push_back(first_key.back() + 1 + static_cast<int>(random() % 20));
      extra_begin.push_back(static_cast<int>(extra.size()));
      for (int c = dense_end.back() + 1; c < cache_rows; c += 1 + static_cast<int>(random() % 9)) {
        extra.push_back(c);
      }
      extra_end.push_back(static_cast<int>(extra.size()));
    }
    const int n = (cache_rows + pr - 1) / pr;
    for (int i = 0; i < n; ++i) pages.push_back((i * 7 + 3) % n);
    std::shuffle(pages.begin(), pages.end(), random);
  }

  RowView view() const {
    return {rows,
            page_rows,
            position.data(),
            slot.data(),
            table.data(),
            first_key.data(),
            dense_end.data(),
            extra_begin.data(),
            extra_end.data(),
            extra.data(),
            pages.data()};
  }

  std::vector<int> visible(size_t r) const {
    std::vector<int> keys;
    for (int c = first_key[r]; c < dense_end[r]; ++c) keys.push_back(c);
    for (int e = extra_begin[r]; e < extra_end[r]; ++e)
      keys.push_back(extra[static_cast<size_t>(e)]);
    return keys;
  }
};

template <class T, class A>
std::vector<T> run(const Case& c) {
  std::vector<T> keys(c.pages.size() * static_cast<size_t>(c.kv_heads * c.page_rows * c.head_dim),
                      T(NAN));
  std::vector<T> values = keys;
  for (int row = 0; row < c.cache_rows; ++row) {
    for (int h = 0; h < c.kv_heads; ++h) {
      for (int i = 0; i < c.head_dim; ++i) {
        const int page = c.pages[static_cast<size_t>(row / c.page_rows)];
        const auto to = static_cast<size_t>(
            ((page * c.kv_heads + h) * c.page_rows + row % c.page_rows) * c.head_dim + i);
        const auto from = static_cast<size_t>((row * c.kv_heads + h) * c.head_dim + i);
        keys[to] = static_cast<T>(c.k[from]);
        values[to] = static_cast<T>(c.v[from]);
      }
    }
  }
  const std::vector<T> qkv(c.qkv.begin(), c.qkv.end());
  std::vector<T> out(static_cast<size_t>(c.rows * c.heads * c.head_dim));
  cpu::attention<T, A>(out.data(), qkv.data(), c.view(),
                       {c.heads, c.kv_heads, c.head_dim, keys.data(), values.data()},
                       static_cast<A>(1 / std::sqrt(c.head_dim)));
  return out;
}

// softmax(q k / sqrt(d)) v over the visible keys, in double.
std::vector<double> definition(const Case& c) {
  std::vector<double> out;
  for (int r = 0; r < c.rows; ++r) {
    for (int h = 0; h < c.heads; ++h) {
      const int kvh = h / (c.heads / c.kv_heads);
      const double* q =
          &c.qkv[static_cast<size_t>((r * (c.heads + 2 * c.kv_heads) + h) * c.head_dim)];
      std::vector<double> sum(static_cast<size_t>(c.head_dim));
      double total = 0;
      for (const int key : c.visible(static_cast<size_t>(r))) {
        const auto at = static_cast<size_t>((key * c.kv_heads + kvh) * c.head_dim);
        double score = 0;
        for (size_t i = 0; i < sum.size(); ++i) score += q[i] * c.k[at + i];
        const double p = std::exp(score / std::sqrt(c.head_dim));
        total += p;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += p * c.v[at + i];
      }
      for (const double s : sum) out.push_back(s / total);
    }
  }
  return out;
}

template <class T, class A>
void expect_near_definition(double tolerance) {
  uint64_t seed = 0;
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{6, 2}, std::pair{5, 1}}) {
    for (const int d : {4, 16, 20, 64, 96}) {
      for (const int page_rows : {1, 4, 16}) {
        const Case c(heads, kv_heads, d, page_rows, ++seed);
        const std::vector<T> got = run<T, A>(c);
        const std::vector<double> want = definition(c);
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(static_cast<double>(got[i]), want[i], tolerance) << seed << ", " << i;
        }
      }
    }
  }
}

TEST(CpuAttention, IsTheDefinition) {
  expect_near_definition<double, double>(1e-12);
  expect_near_definition<float, float>(2e-5);
  expect_near_definition<c10::BFloat16, float>(0.06);
}

TEST(CpuAttention, BitsDoNotDependOnPagesOrNeighboursOrThreads) {
  const Case small(6, 2, 64, 1, 5);
  const std::vector<float> want = run<float, float>(small);
  for (const int page_rows : {3, 8, 16}) {
    Case c = small;
    c.page_rows = page_rows;
    c.pages.clear();
    for (int i = (c.cache_rows - 1) / page_rows; i >= 0; --i) c.pages.push_back(i);
    EXPECT_EQ((run<float, float>(c)), want);
  }
  cpu::set_team_size(3);
  EXPECT_EQ((run<float, float>(small)), want);
  cpu::set_team_size(1);
  // The same keys as a range and as a list.
  Case listed = small;
  listed.extra.clear();
  for (size_t r = 0; r < 5; ++r) {
    const std::vector<int> keys = small.visible(r);
    listed.first_key[r] = listed.dense_end[r] = 0;
    listed.extra_begin[r] = static_cast<int>(listed.extra.size());
    listed.extra.insert(listed.extra.end(), keys.begin(), keys.end());
    listed.extra_end[r] = static_cast<int>(listed.extra.size());
  }
  EXPECT_EQ((run<float, float>(listed)), want);
}

TEST(CpuMath, ExpIsWithinTwoUlps) {
  for (float x = -86.5f; x < 88.f; x += 0.0137f) {
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(cpu::exp_of(x) / want, 1, 3e-7) << x;
  }
  EXPECT_EQ(cpu::exp_of(0.f), 1.f);
  EXPECT_EQ(cpu::exp_of(-1000.f), 0.f);
  EXPECT_EQ(cpu::exp_of(-INFINITY), 0.f);
  EXPECT_GT(cpu::exp_of(1000.f), 1e38f);
  EXPECT_TRUE(std::isnan(cpu::exp_of(NAN)));
}

TEST(CpuParallel, CoversEveryIndexOnce) {
  cpu::set_team_size(2);
  for (const int64_t n : {0, 1, 5, 64, 1000}) {
    for (const int64_t grain : {1, 7, 2000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      cpu::parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)]++;
      });
      for (const auto& s : seen) ASSERT_EQ(s, 1);
    }
  }
  cpu::set_team_size(1);
}

}  // namespace
}  // namespace tandem
