// The CPU's kernels against LibTorch's operators, in every type.
#include "engine/backend/torch/ops.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "engine/backend/torch/cpu/parallel.h"
#include "tests/engine/backend/torch/cpu/attention_case.h"

namespace tandem {
namespace {

// Types of activations and of the cache.
class OpsOfTypes : public testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {
 protected:
  at::ScalarType type() const { return std::get<0>(GetParam()); }
  at::ScalarType kv_type() const { return std::get<1>(GetParam()); }
  at::ScalarType residual() const { return type() == at::kDouble ? at::kDouble : at::kFloat; }

  void SetUp() override {
    at::manual_seed(3);
    at::set_num_threads(1);  // its teams are slow to gather on a busy machine
  }

  at::Tensor random(at::IntArrayRef shape, at::ScalarType t) {
    return at::randn(shape, at::kDouble).to(t);
  }

  // One rounding to the type may differ.
  void expect_close(const at::Tensor& got, const at::Tensor& want) {
    const double tolerance = want.scalar_type() == at::kDouble     ? 1e-12
                             : want.scalar_type() == at::kBFloat16 ? 0.01
                                                                   : 1e-5;
    const at::Tensor a = got.to(at::kDouble);
    const at::Tensor b = want.to(at::kDouble);
    ASSERT_FALSE(b.isnan().any().item<bool>());
    const double worst = ((a - b).abs() / (1 + b.abs())).max().item<double>();
    EXPECT_LT(worst, tolerance);
  }

  // Pages of a random case, as a pool would hold them.
  LayerKv store(const AttentionCase& c) {
    const AttentionShape& s = c.shape;
    keys_ = at::full({c.page_count, s.kv_heads, s.head_dim, s.page_rows}, NAN, kv_type());
    values_ = at::full({c.page_count, s.kv_heads, s.page_rows, s.head_dim}, NAN, kv_type());
    for (size_t q = 0; q < c.cache_rows.size(); ++q) {
      for (int row = 0; row < c.cache_rows[q]; row += s.page_rows) {
        const int page = c.page_of[q][static_cast<size_t>(row / s.page_rows)];
        const int n = std::min(s.page_rows, c.cache_rows[q] - row);
        keys_.select(0, page).narrow(2, 0, n).copy_(random({s.kv_heads, s.head_dim, n}, kv_type()));
        values_.select(0, page).narrow(1, 0, n).copy_(
            random({s.kv_heads, n, s.head_dim}, kv_type()));
      }
    }
    return {s.heads, s.kv_heads, s.head_dim, keys_, values_};
  }

  const c10::InferenceMode inference_;
  at::Tensor keys_, values_;
};

std::string type_name(at::ScalarType t) {
  return t == at::kDouble ? "fp64" : t == at::kFloat ? "fp32" : "bf16";
}
INSTANTIATE_TEST_SUITE_P(
    Types, OpsOfTypes,
    testing::Values(std::tuple(at::kDouble, at::kDouble), std::tuple(at::kFloat, at::kFloat),
                    std::tuple(at::kFloat, at::kBFloat16), std::tuple(at::kBFloat16, at::kFloat),
                    std::tuple(at::kBFloat16, at::kBFloat16)),
    [](const auto& info) {
      return type_name(std::get<0>(info.param)) + "_kv_" + type_name(std::get<1>(info.param));
    });

TEST_P(OpsOfTypes, Norms) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int width : {1, 15, 64, 320, 771}) {
      const at::Tensor x = random({5, width}, residual()) + 0.5;
      const Norm norm{kind, random({width}, residual()), random({width}, residual()), 1e-5};
      at::Tensor got = at::empty({5, width}, type());
      at::Tensor want = at::empty({5, width}, type());
      cpu_ops().norm(got, x, norm);
      aten_ops().norm(want, x, norm);
      expect_close(got, want);

      const at::Tensor y = random({5, width}, type());
      at::Tensor sum = x.clone(), want_sum = x.clone();
      cpu_ops().add_norm(sum, y, norm);
      aten_ops().add_norm(want_sum, y, norm);
      expect_close(sum, want_sum);
    }
  }
}

TEST_P(OpsOfTypes, NormsOfHeads) {
  const Norm norm{NormKind::kRms, random({12}, residual()), {}, 1e-6};
  const at::Tensor x = random({5, 7 * 12}, type());
  at::Tensor got = x.clone(), want = x.clone();
  cpu_ops().norm_heads(got, 2, 3, 12, norm);
  aten_ops().norm_heads(want, 2, 3, 12, norm);
  expect_close(got, want);
  EXPECT_TRUE(got.narrow(1, 0, 24).equal(x.narrow(1, 0, 24)));
  EXPECT_TRUE(got.narrow(1, 60, 24).equal(x.narrow(1, 60, 24)));
  EXPECT_FALSE(got.narrow(1, 24, 36).equal(x.narrow(1, 24, 36)));
}

TEST_P(OpsOfTypes, Activations) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    for (const int width : {1, 15, 48, 864}) {
      const at::Tensor x = random({7, 2 * width}, type()) * 8;
      at::Tensor got = at::empty({7, width}, type());
      at::Tensor want = at::empty({7, width}, type());
      cpu_ops().gate(got, x, activation);
      aten_ops().gate(want, x, activation);
      expect_close(got, want);
      at::Tensor plain = x.clone(), want_plain = x.clone();
      cpu_ops().activate(plain, activation);
      aten_ops().activate(want_plain, activation);
      expect_close(plain, want_plain);
    }
  }
}

TEST_P(OpsOfTypes, WindowsOfLayers) {
  const AttentionShape planned{.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 7};
  const AttentionShape full{.heads = 4, .kv_heads = 2, .head_dim = 16};
  const std::vector<std::pair<int, int>> sizes{{7, 1}, {30, 13}, {0, 9}, {300, 2}};
  const AttentionCase narrow(planned, sizes, 5), wide(full, sizes, 5);
  ASSERT_EQ(narrow.rows(), wide.rows());
  const LayerKv kv = store(wide);
  const at::Tensor qkv = random({wide.rows(), 8 * 16}, type());
  at::Tensor want = at::empty({wide.rows(), 64}, type());
  cpu_ops().attention(want, qkv, narrow.view(), kv, narrow.scale(), {});
  for (const Ops* ops : {&cpu_ops(), &aten_ops()}) {
    RowView rows = wide.view();
    rows.window = 7;
    at::Tensor got = at::empty({wide.rows(), 64}, type());
    ops->attention(got, qkv, rows, kv, wide.scale(), {});
    expect_close(got, want);
    if (ops == &cpu_ops()) {
      EXPECT_TRUE(got.equal(want));
    }
  }
}

TEST_P(OpsOfTypes, RopeAndStore) {
  for (const int head_dim : {8, 20, 64}) {
    const AttentionShape s{.heads = 4, .kv_heads = 2, .head_dim = head_dim, .page_rows = 4};
    AttentionCase c(s, {{5, 3}, {9, 6}}, 8);
    for (int r = 0; r < c.rows(); ++r) {  // slots of rows' own, in some order
      c.columns.slot[static_cast<size_t>(r)] = (r * 7 + 3) % (c.page_count * s.page_rows);
    }
    std::vector<float> inverse;
    for (int i = 0; i < head_dim / 2; ++i) inverse.push_back(std::pow(0.7f, static_cast<float>(i)));
    Rope rope(inverse, residual(), at::kCPU);
    rope.reach(20);
    const at::Tensor qkv = random({c.rows(), (s.heads + 2 * s.kv_heads) * head_dim}, type());
    store(c);
    at::Tensor keys = keys_.nan_to_num(0.5);
    at::Tensor values = values_.nan_to_num(0.5);
    at::Tensor want_keys = keys.clone();
    at::Tensor want_values = values.clone();
    at::Tensor got = qkv.clone();
    at::Tensor want = qkv.clone();
    cpu_ops().rope_and_store(got, c.view(), {s.heads, s.kv_heads, head_dim, keys, values}, rope);
    aten_ops().rope_and_store(want, c.view(),
                              {s.heads, s.kv_heads, head_dim, want_keys, want_values}, rope);
    expect_close(got.narrow(1, 0, s.heads * head_dim), want.narrow(1, 0, s.heads * head_dim));
    expect_close(keys, want_keys);
    expect_close(values, want_values);
  }
}

TEST_P(OpsOfTypes, Attention) {
  uint64_t seed = 0;
  const std::vector<std::pair<int, int>> sizes{{7, 1}, {250, 13}, {0, 9}, {600, 2}};
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{6, 2}, std::pair{7, 1}}) {
    for (const int page_rows : {4, 16}) {
      for (const int window : {0, 30}) {
        const AttentionShape s{heads, kv_heads, 32, page_rows, window};
        const AttentionCase c(s, sizes, ++seed);
        const LayerKv kv = store(c);
        const at::Tensor qkv = random({c.rows(), (heads + 2 * kv_heads) * 32}, type());
        at::Tensor got = at::empty({c.rows(), heads * 32}, type());
        at::Tensor want = at::empty({c.rows(), heads * 32}, type());
        cpu::set_team_size(1 + static_cast<int>(seed % 2));
        DistanceBias bias;
        if (seed % 3 == 0) bias = {random({heads, 20 + 1 + 2}, residual()) * 3, 20, 2};
        cpu_ops().attention(got, qkv, c.view(), kv, c.scale(), bias);
        aten_ops().attention(want, qkv, c.view(), kv, c.scale(), bias);
        expect_close(got, want);
        if (!bias.table.defined()) continue;
        cpu_ops().attention(want, qkv, c.view(), kv, c.scale(), {});
        EXPECT_FALSE(got.equal(want));
      }
    }
  }
  cpu::set_team_size(1);
}

}  // namespace
}  // namespace tandem
