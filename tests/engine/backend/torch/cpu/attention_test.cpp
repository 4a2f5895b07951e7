// The CPU attention kernel against the definition, and its bit-invariance.
#include "engine/backend/torch/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "tests/engine/backend/torch/cpu/attention_case.h"

namespace tandem {
namespace {

using cpu::BFloat16;

// softmax(scale q k + bias) v over the visible keys, in double, of inputs rounded to K.
template <class X, class K>
std::vector<double> definition(const AttentionCase& c) {
  const AttentionShape& s = c.shape;
  const auto rounded = [](double x) { return static_cast<double>(static_cast<K>(x)); };
  std::vector<double> out;
  for (int r = 0; r < c.rows(); ++r) {
    const auto sequence = static_cast<size_t>(c.sequence[static_cast<size_t>(r)]);
    const std::vector<int>& context = c.context[static_cast<size_t>(r)];
    for (int h = 0; h < s.heads; ++h) {
      const int kv_head = h / (s.heads / s.kv_heads);
      const double* q = &c.q[static_cast<size_t>((r * s.heads + h) * s.head_dim)];
      std::vector<double> sum(static_cast<size_t>(s.head_dim));
      double total = 0;
      for (size_t i = 0; i < context.size(); ++i) {
        const auto at = static_cast<size_t>((context[i] * s.kv_heads + kv_head) * s.head_dim);
        double score = 0;
        for (size_t j = 0; j < sum.size(); ++j) {
          score += static_cast<double>(static_cast<X>(q[j])) * rounded(c.k[sequence][at + j]);
        }
        const double p = std::exp(score * c.scale() + c.bias_of(h, r, static_cast<int>(i)));
        total += p;
        for (size_t j = 0; j < sum.size(); ++j) sum[j] += p * rounded(c.v[sequence][at + j]);
      }
      for (const double x : sum) out.push_back(x / total);
    }
  }
  return out;
}

template <class X, class K>
void expect_definition(const AttentionCase& c, double tolerance) {
  const std::vector<X> got = c.run<X, K>();
  const std::vector<double> want = definition<X, K>(c);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], tolerance)
        << "row " << i / static_cast<size_t>(c.shape.heads * c.shape.head_dim);
  }
}

void expect_definition(const AttentionCase& c) {
  expect_definition<double, double>(c, 1e-12);
  expect_definition<float, float>(c, 1e-5);
  expect_definition<float, BFloat16>(c, 1e-5);
  expect_definition<BFloat16, float>(c, 0.02);
  expect_definition<BFloat16, BFloat16>(c, 0.02);
}

std::string name(const AttentionShape& s) {
  return "heads " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " x " +
         std::to_string(s.head_dim) + ", pages of " + std::to_string(s.page_rows) + ", window " +
         std::to_string(s.window);
}

// Group sizes, head sizes and page sizes that exercise every code path of the kernel.
std::vector<AttentionShape> shapes() {
  std::vector<AttentionShape> all;
  for (const auto& [heads, kv_heads] :
       {std::pair{2, 2}, std::pair{4, 2}, std::pair{3, 1}, std::pair{5, 1}, std::pair{14, 2}}) {
    for (const int d : {4, 20, 64, 96}) {
      for (const int page_rows : {1, 4, 16}) all.push_back({heads, kv_heads, d, page_rows});
    }
  }
  all.push_back({.heads = 1, .kv_heads = 1, .head_dim = 128, .page_rows = 32});
  all.push_back({.heads = 6, .kv_heads = 1, .head_dim = 256, .page_rows = 8});
  all.push_back({.heads = 12, .kv_heads = 1, .head_dim = 80, .page_rows = 48});
  return all;
}

TEST(CpuAttention, MatchesTheDefinition) {
  for (const std::string& target : cpu::targets()) {
    ASSERT_TRUE(cpu::force_target(target).ok());
    uint64_t seed = 0;
    for (const AttentionShape& s : shapes()) {
      SCOPED_TRACE(target + ", " + name(s));
      expect_definition(AttentionCase(s, {{7, 1}, {0, 9}, {40, 5}, {19, 1}}, ++seed));
    }
  }
  ASSERT_TRUE(cpu::force_target("").ok());
}

TEST(CpuAttention, MatchesTheDefinitionOverSeveralSplits) {
  uint64_t seed = 100;
  for (const AttentionShape& s : {AttentionShape{4, 2, 16, 16}, AttentionShape{5, 1, 32, 4}}) {
    SCOPED_TRACE(name(s));
    for (const int team : {1, 3}) {
      cpu::set_team_size(team);
      // Trees before, across and after split boundaries, and a long prefill chunk.
      const int split = cpu::kSplitKeys;
      expect_definition(
          AttentionCase(s, {{split - 3, 9}, {split, 4}, {2 * split + 1, 12}}, ++seed));
      expect_definition(AttentionCase(s, {{3 * split - 1, 1}}, ++seed));
      // A tree whose rows span more than one split.
      expect_definition(AttentionCase(s, {{10, split + 70}}, ++seed));
      AttentionShape chain = s;
      chain.tree = false;
      expect_definition(AttentionCase(chain, {{split - 20, 70}}, ++seed));
    }
  }
  cpu::set_team_size(1);
}

TEST(CpuAttention, WindowCutsThePast) {
  uint64_t seed = 200;
  for (const int window : {1, 3, 17, 300}) {
    const AttentionShape s{
        .heads = 4, .kv_heads = 2, .head_dim = 16, .page_rows = 8, .window = window};
    SCOPED_TRACE(name(s));
    expect_definition(AttentionCase(s, {{0, 12}, {30, 20}, {520, 7}, {254, 25}}, ++seed));
  }
}

TEST(CpuAttention, BiasByDistance) {
  AttentionShape s{.heads = 4, .kv_heads = 4, .head_dim = 16, .bias = true};
  expect_definition(AttentionCase(s, {{0, 12}, {30, 20}, {300, 7}}, 301));
  s.window = 9;
  expect_definition(AttentionCase(s, {{0, 12}, {30, 20}, {300, 7}}, 302));
}

TEST(CpuAttention, CrossAttention) {
  const AttentionShape s{.heads = 6, .kv_heads = 2, .head_dim = 16, .cross = true};
  expect_definition(AttentionCase(s, {{1, 3}, {40, 7}, {513, 1}}, 401));
}

std::vector<AttentionCase> bit_cases() {
  std::vector<AttentionCase> all;
  const std::vector<std::pair<int, int>> sizes{{7, 1}, {250, 19}, {600, 3}, {0, 70}};
  all.emplace_back(AttentionShape{.heads = 2, .kv_heads = 2, .head_dim = 32}, sizes, 1);
  all.emplace_back(AttentionShape{.heads = 5, .kv_heads = 1, .head_dim = 64}, sizes, 2);
  all.emplace_back(AttentionShape{.heads = 16, .kv_heads = 2, .head_dim = 20, .window = 40}, sizes,
                   3);
  all.emplace_back(AttentionShape{.heads = 3, .kv_heads = 3, .head_dim = 16, .bias = true}, sizes,
                   4);
  return all;
}

template <class X, class K>
void expect_bits(const AttentionCase& c, const std::vector<X>& want, const std::string& what) {
  const std::vector<X> got = c.run<X, K>();
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << ", " << i;
}

template <class X, class K>
void expect_same_bits() {
  for (AttentionCase c : bit_cases()) {
    const std::vector<X> want = c.run<X, K>();
    // Each row in a batch of its own.
    const auto width = static_cast<size_t>(c.shape.heads * c.shape.head_dim);
    for (int r = 0; r < c.rows(); ++r) {
      RowColumns one;
      one.append(c.columns, r);
      const std::vector<X> got = c.run<X, K>(one, {r});
      for (size_t i = 0; i < width; ++i) {
        ASSERT_EQ(got[i], want[static_cast<size_t>(r) * width + i]) << "row " << r;
      }
    }
    // Thread counts: splits become tasks if there is little other parallelism.
    for (const int team : {2, 5, 16}) {
      cpu::set_team_size(team);
      expect_bits<X, K>(c, want, "threads");
    }
    cpu::set_team_size(1);
    std::mt19937_64 random(9);
    for (const int page_rows : {3, 8, 32}) {
      c.shape.page_rows = page_rows;
      c.lay_out(random);
      expect_bits<X, K>(c, want, "pages");
    }
  }
}

TEST(CpuAttention, BitsDoNotDependOnBatchThreadsOrPages) {
  expect_same_bits<float, float>();
  expect_same_bits<float, BFloat16>();
  expect_same_bits<double, double>();
}

// All targets with fused multiply-add, which excludes only EMU128.
TEST(CpuAttention, BitsDoNotDependOnTheProcessor) {
  for (const AttentionCase& c : bit_cases()) {
    const auto single = c.run<float, float>();
    const auto half = c.run<float, BFloat16>();
    for (const std::string& target : cpu::targets()) {
      if (target == "EMU128") continue;  // no fused multiply-add
      ASSERT_TRUE(cpu::force_target(target).ok());
      expect_bits<float, float>(c, single, target);
      expect_bits<float, BFloat16>(c, half, target);
    }
    ASSERT_TRUE(cpu::force_target("").ok());
  }
}

// A path of a tree gets the same bits as a chain of the same tokens, before and after the rows are
// compacted.
TEST(CpuAttention, BranchesHaveTheBitsOfChains) {
  for (const int window : {0, 6}) {
    const AttentionShape s{.heads = 5, .kv_heads = 1, .head_dim = 64, .window = window};
    const AttentionCase tree(s, {{cpu::kSplitKeys - 4, 30}}, 17);
    const std::vector<float> got = tree.run<float, float>();
    const auto width = static_cast<size_t>(s.heads * s.head_dim);
    const auto row_size = static_cast<size_t>(s.kv_heads * s.head_dim);
    int branches = 0;
    for (int r = 0; r < tree.rows(); ++r) {
      const auto row = static_cast<size_t>(r);
      branches += tree.columns.extra_end[row] > tree.columns.extra_begin[row];
      AttentionShape one = s;
      one.tree = false;
      AttentionCase chain(one, {{tree.columns.position[row], 1}}, 18);
      const int first = tree.first_number[row];
      for (size_t i = 0; i < tree.context[row].size(); ++i) {
        const size_t from = static_cast<size_t>(tree.context[row][i]) * row_size;
        const size_t to = (static_cast<size_t>(first) + i) * row_size;
        std::copy_n(tree.k[0].begin() + static_cast<int64_t>(from), row_size,
                    chain.k[0].begin() + static_cast<int64_t>(to));
        std::copy_n(tree.v[0].begin() + static_cast<int64_t>(from), row_size,
                    chain.v[0].begin() + static_cast<int64_t>(to));
      }
      std::copy_n(tree.q.begin() + static_cast<int64_t>(row * width), width, chain.q.begin());
      const std::vector<float> want = chain.run<float, float>();
      for (size_t i = 0; i < width; ++i) ASSERT_EQ(got[row * width + i], want[i]) << "row " << r;
    }
    EXPECT_GT(branches, 5);
  }
}

// NaN in one sequence does not spread, even through reused pages.
TEST(CpuAttention, NaNStaysInItsSequence) {
  const AttentionShape s{.heads = 4, .kv_heads = 2, .head_dim = 16};
  const std::vector<std::pair<int, int>> sizes{{9, 2}, {20, 3}, {300, 2}};
  const AttentionCase clean(s, sizes, 5);
  AttentionCase faulty = clean;
  for (double& x : faulty.k[1]) x = NAN;
  for (double& x : faulty.v[1]) x = NAN;
  const std::vector<float> want = clean.run<float, float>();
  const std::vector<float> got = faulty.run<float, float>();
  const auto width = static_cast<size_t>(s.heads * s.head_dim);
  for (size_t i = 0; i < want.size(); ++i) {
    if (clean.sequence[i / width] == 1) {
      ASSERT_TRUE(std::isnan(got[i]));
    } else {
      ASSERT_EQ(got[i], want[i]);
    }
  }
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

TEST(CpuMath, BFloat16RoundsToTheNearest) {
  EXPECT_EQ(static_cast<float>(BFloat16(1.f)), 1.f);
  EXPECT_EQ(static_cast<float>(BFloat16(1.00390625f)), 1.f);        // a tie: to even
  EXPECT_EQ(static_cast<float>(BFloat16(1.01171875f)), 1.015625f);  // a tie: to even
  EXPECT_EQ(static_cast<float>(BFloat16(1.0040f)), 1.0078125f);
  EXPECT_EQ(static_cast<float>(BFloat16(-3.4e38f)), -INFINITY);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(NAN))));
}

}  // namespace
}  // namespace tandem
