// Low-rank additions against fp64, and their bits: independent of other rows and of the threads.
#include "engine/backend/torch/model/lora.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/tensor_access.h"
#include "engine/backend/torch/weights/convert.h"
#include "tests/engine/backend/torch/lora_folders.h"

namespace tandem {
namespace {

// One layer, wide enough that its products are shared among threads.
DecoderConfig wide_config() {
  DecoderConfig c;
  c.vocab_size = 8;
  c.hidden_size = 320;
  c.intermediate_size = 500;
  c.layers = 1;
  c.heads = 5;
  c.kv_heads = 1;
  c.head_dim = 64;
  return c;
}

at::Tensor random_rows(int64_t rows, int64_t width, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  at::Tensor t = at::empty({rows, width}, at::kFloat);
  for (int64_t i = 0; i < t.numel(); ++i) data<float>(t)[i] = normal(random);
  return t;
}

class LowRank : public testing::Test {
 protected:
  LowRank() {
    const c10::InferenceMode inference;
    for (const auto& [name, rank] : {std::pair{"small", 3}, std::pair{"large", 40}}) {
      const ExtraConfig folder = folders_.write(name, rank, static_cast<uint64_t>(rank));
      files_.push_back(*LoraFile::open(folder.path, config_));
      weights_.push_back(*LoraWeights::load(files_.back(), config_, WeightStore{}));
    }
  }
  void TearDown() override { cpu::set_team_size(1); }

  // scale * B (A x) in fp64. [outs]
  std::vector<double> reference(size_t adapter, LoraPart part, const float* x) const {
    const LoraFile& file = files_[adapter];
    const LinearSpec spec = lora_spec(config_, 0, part);
    std::vector<double> y;
    for (const LoraModule& m : file.modules) {
      if (m.part != part) continue;
      const std::vector<double> a = numbers(file, m.name + ".lora_A.weight");
      const std::vector<double> b = numbers(file, m.name + ".lora_B.weight");
      const auto rank = static_cast<size_t>(m.rank), in = static_cast<size_t>(spec.in);
      std::vector<double> inner(rank);
      for (size_t r = 0; r < rank; ++r) {
        for (size_t k = 0; k < in; ++k) inner[r] += a[r * in + k] * static_cast<double>(x[k]);
      }
      for (size_t o = 0; o < static_cast<size_t>(spec.outs[m.matrix]); ++o) {
        double sum = 0;
        for (size_t r = 0; r < rank; ++r) sum += b[o * rank + r] * inner[r];
        y.push_back(m.scale * sum);
      }
    }
    return y;
  }

  static std::vector<double> numbers(const LoraFile& file, const std::string& name) {
    const TensorView& view = *file.tensors.find(name);
    std::vector<double> all(static_cast<size_t>(view.elements()));
    EXPECT_TRUE(to_double(view, 0, all).ok());
    return all;
  }

  const DecoderConfig config_ = wide_config();
  const test::LoraFolders folders_{config_};
  std::vector<LoraFile> files_;
  std::vector<LoraWeights> weights_;
};

TEST_F(LowRank, AdditionsEqualFp64ForTheRowsOfTheirAdapterOnly) {
  const c10::InferenceMode inference;
  LoraProducts products(WeightStore{});
  for (const LoraPart part : test::kEveryLoraPart) {
    const LinearSpec spec = lora_spec(config_, 0, part);
    int64_t outs = 0;
    for (const int64_t o : spec.outs) outs += o;
    const at::Tensor x = random_rows(7, spec.in, 1);
    const at::Tensor before = random_rows(7, outs, 2);
    at::Tensor y = before.clone();
    const std::vector<int64_t> small{0, 5}, large{2, 3, 6};
    const std::vector<LoraGroup> groups{{&weights_[0], small.data(), 2},
                                        {&weights_[1], large.data(), 3}};
    products.add(y, x, groups, 0, part);
    const AddedRows* const added = products.sums(x, groups, 0, part, outs);
    ASSERT_NE(added, nullptr);
    for (int64_t r = 0; r < 7; ++r) {
      const float* const got = data<float>(std::as_const(y)) + r * outs;
      const float* const old = data<float>(before) + r * outs;
      const bool first = std::ranges::count(small, r) > 0;
      if (!first && std::ranges::count(large, r) == 0) {
        EXPECT_EQ(std::memcmp(got, old, static_cast<size_t>(outs) * sizeof(float)), 0) << r;
        EXPECT_EQ(added->row[r], -1);
        continue;
      }
      const std::vector<double> want = reference(first ? 0 : 1, part, data<float>(x) + r * spec.in);
      ASSERT_EQ(want.size(), static_cast<size_t>(outs));
      ASSERT_GE(added->row[r], 0);
      const float* const sum = data<float>(added->sums) + added->row[r] * outs;
      for (int64_t o = 0; o < outs; ++o) {
        const double expected = want[static_cast<size_t>(o)];
        const double slack = 1e-4 * (1 + std::abs(expected));
        ASSERT_NEAR(sum[o], expected, slack);
        ASSERT_NEAR(got[o], expected + static_cast<double>(old[o]), slack);
      }
    }
  }
}

TEST_F(LowRank, BitsDependOnTheRowAlone) {
  const c10::InferenceMode inference;
  LoraProducts products(WeightStore{});
  constexpr int64_t kRows = 37;
  for (const LoraPart part : test::kEveryLoraPart) {
    const LinearSpec spec = lora_spec(config_, 0, part);
    int64_t outs = 0;
    for (const int64_t o : spec.outs) outs += o;
    const at::Tensor x = random_rows(kRows, spec.in, 3);
    const at::Tensor before = random_rows(kRows, outs, 4);
    for (size_t adapter = 0; adapter < weights_.size(); ++adapter) {
      // Each row alone.
      at::Tensor alone = before.clone();
      const int64_t zero = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        at::Tensor row = alone.narrow(0, r, 1);
        products.add(row, at::Tensor(x.narrow(0, r, 1)),
                     std::vector<LoraGroup>{{&weights_[adapter], &zero, 1}}, 0, part);
      }
      for (const int threads : {1, 2, 5}) {
        cpu::set_team_size(threads);
        for (const int64_t step : {1, 2, 3, 9}) {
          std::vector<int64_t> rows, others;
          for (int64_t r = 0; r < kRows; ++r) (r % step == 0 ? rows : others).push_back(r);
          at::Tensor y = before.clone();
          std::vector<LoraGroup> groups{
              {&weights_[adapter], rows.data(), static_cast<int64_t>(rows.size())}};
          if (!others.empty()) {
            groups.push_back(
                {&weights_[1 - adapter], others.data(), static_cast<int64_t>(others.size())});
          }
          products.add(y, x, groups, 0, part);
          for (const int64_t r : rows) {
            ASSERT_EQ(std::memcmp(data<float>(std::as_const(y)) + r * outs,
                                  data<float>(std::as_const(alone)) + r * outs,
                                  static_cast<size_t>(outs) * sizeof(float)),
                      0)
                << "row " << r << " of every " << step << ", " << threads << " threads";
          }
        }
      }
      cpu::set_team_size(1);
    }
  }
}

// 16 bits by the file or by the configuration, fp32 by LibTorch's operators.
TEST_F(LowRank, MemoryIsKnownBeforeLoading) {
  const c10::InferenceMode inference;
  const auto loaded = [&](const std::string& file_type, DType dtype, const WeightStore& store) {
    const ExtraConfig folder =
        folders_.write(file_type, 5, 1, {LoraPart::kQkv, LoraPart::kDown}, 0.2F, file_type);
    const LoraFile file = *LoraFile::open(folder.path, config_);
    const LoraWeights weights = *LoraWeights::load(file, config_, store, dtype);
    EXPECT_EQ(weights.bytes(), LoraWeights::bytes_of(file, config_, store, dtype));
    return weights.bytes();
  };
  const WeightStore own, aten{.kernels = CpuKernels::kAten};
  // A of three and of one matrix, [15, 320] and [5, 512 of 500]; B: columns of 5 ranks.
  const int64_t numbers = 15 * 320 + 5 * 512 + 5 * (7 * 64 + 320);
  for (const std::string type : {"F32", "BF16", "F16"}) {
    const int64_t all = loaded(type, DType::kFloat32, own);
    EXPECT_EQ(all, numbers * 4);
    EXPECT_EQ(loaded(type, DType::kAuto, own), type == "F32" ? all : all / 2) << type;
    EXPECT_EQ(loaded(type, DType::kBFloat16, own), all / 2);
    EXPECT_EQ(loaded(type, DType::kFloat16, own), all / 2);
    EXPECT_EQ(loaded(type, DType::kAuto, {.dtype = DType::kFloat64}), all * 2);
    EXPECT_EQ(loaded(type, DType::kAuto, {.dtype = DType::kInt4}), type == "F32" ? all : all / 2);
    EXPECT_EQ(loaded(type, DType::kAuto, aten), loaded("F32", DType::kAuto, aten));
  }
}

TEST_F(LowRank, PlacesBetweenLayers) {
  const c10::InferenceMode inference;
  DecoderConfig config = config_;
  config.layers = 4;
  const test::LoraFolders folders(config);
  const LoraFile file = *LoraFile::open(folders.write("four", 4, 1).path, config);
  const LoraWeights weights = *LoraWeights::load(file, config, WeightStore{});
  const auto all = weights.between(0, 4);
  EXPECT_EQ(static_cast<int64_t>(all.size()), weights.bytes());
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(weights.between(layer, layer + 1).size(), all.size() / 4);
    EXPECT_EQ(weights.between(0, layer).size(), all.size() / 4 * static_cast<size_t>(layer));
    const std::byte* const own = weights.find(layer, LoraPart::kQkv)->a;
    EXPECT_EQ(weights.between(layer, layer + 0.5).data(), own);
  }
  EXPECT_EQ(weights.between(1.25, 2.5).size(), all.size() / 16 * 5);
  EXPECT_EQ(weights.between(3.5, 4.75).size(), all.size() / 8);
  EXPECT_TRUE(weights.between(4.25, 4.75).empty());
}

// The interface of CUDA's kernels, in LibTorch's operators: by addresses of each row's adapter.
TEST_F(LowRank, RowsFindTheirAdapterByItsAddress) {
  const c10::InferenceMode inference;
  const WeightStore store{.kernels = CpuKernels::kAten};
  std::vector<LoraWeights> weights;
  for (const LoraFile& file : files_) weights.push_back(*LoraWeights::load(file, config_, store));
  EXPECT_EQ(weights[0].rank(), 3);
  EXPECT_EQ(weights[1].parts(), 0b1111u);
  EXPECT_GE(weights[1].bytes(), files_[1].tensors.total_elements() * int64_t{sizeof(float)});
  EXPECT_EQ(weights_[0].for_kernels(), nullptr) << "the CPU's own products need no addresses";
  LoraProducts products(store), own(WeightStore{});
  const std::vector<int64_t> small{0, 5}, large{2, 3, 6};
  const std::vector<LoraGroup> groups{{&weights_[0], small.data(), 2},
                                      {&weights_[1], large.data(), 3}};
  LoraColumns columns{.adapter = std::vector<const LoraLayer*>(7),
                      .added = std::vector<int32_t>(7, -1),
                      .rank = 64};
  for (size_t adapter = 0; adapter < 2; ++adapter) {
    for (const int64_t r : adapter == 0 ? small : large) {
      columns.adapter[static_cast<size_t>(r)] = weights[adapter].for_kernels();
      columns.added[static_cast<size_t>(r)] = static_cast<int32_t>(r);
    }
    columns.parts |= weights[adapter].parts();
  }
  const LoraView view{columns.adapter.data(), columns.added.data(), columns.rank, columns.parts};
  for (const LoraPart part : test::kEveryLoraPart) {
    const LinearSpec spec = lora_spec(config_, 0, part);
    int64_t outs = 0;
    for (const int64_t o : spec.outs) outs += o;
    const at::Tensor x = random_rows(7, spec.in, 1), before = random_rows(7, outs, 2);
    at::Tensor got = before.clone(), want = before.clone();
    products.add(got, x, view, 0, part);
    own.add(want, x, groups, 0, part);
    const AddedRows* const added = products.sums(x, view, 0, part, outs);
    ASSERT_NE(added, nullptr);
    for (int64_t r = 0; r < 7; ++r) {
      const bool adapted = columns.added[static_cast<size_t>(r)] >= 0;
      ASSERT_EQ(added->row[r], adapted ? r : -1);
      for (int64_t o = r * outs; o < (r + 1) * outs; ++o) {
        const float w = data<float>(std::as_const(want))[o], old = data<float>(before)[o];
        const float g = data<float>(std::as_const(got))[o];
        ASSERT_NEAR(g, w, adapted ? 1e-4 * (1 + std::abs(w)) : 0);
        if (!adapted) continue;
        ASSERT_NEAR(data<float>(added->sums)[o] + old, w, 2e-4 * (1 + std::abs(w) + std::abs(old)));
      }
    }
    // Parts that no adapter of the batch changes are left out.
    LoraView others = view;
    others.parts &= ~(1u << static_cast<unsigned>(part));
    EXPECT_EQ(products.sums(x, others, 0, part, outs), nullptr);
    at::Tensor same = before.clone();
    products.add(same, x, others, 0, part);
    EXPECT_TRUE(same.equal(before));
  }
}

TEST_F(LowRank, WithoutAnAdapterNothingIsComputed) {
  const c10::InferenceMode inference;
  LoraProducts products(WeightStore{});
  const ExtraConfig some = folders_.write("some", 2, 9, {LoraPart::kO});
  const LoraFile file = *LoraFile::open(some.path, config_);
  const LoraWeights weights = *LoraWeights::load(file, config_, WeightStore{});
  EXPECT_EQ(weights.find(0, LoraPart::kQkv), nullptr);
  EXPECT_NE(weights.find(0, LoraPart::kO), nullptr);
  const at::Tensor x = random_rows(2, config_.hidden_size, 5);
  at::Tensor y = at::zeros({2, 1000}, at::kFloat);
  const std::vector<int64_t> rows{1};
  const std::vector<LoraGroup> groups{{&weights, rows.data(), 1}};
  EXPECT_EQ(products.sums(x, groups, 0, LoraPart::kUp, 1000), nullptr);
  products.add(y, x, groups, 0, LoraPart::kUp);
  products.add(y, x, {}, 0, LoraPart::kUp);
  EXPECT_TRUE(
      std::all_of(data<float>(y), data<float>(y) + y.numel(), [](float v) { return v == 0; }));
}

}  // namespace
}  // namespace tandem
