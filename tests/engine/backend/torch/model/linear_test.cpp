// Products of few rows go to weights that are packed for them, all others to the weights as they
// are: here on a CPU in LibTorch's operators, on CUDA in the kernels that are tested by themselves.
#include "engine/backend/torch/model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/weights/gguf_blocks.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {
namespace {

constexpr int64_t kIn = 24;
constexpr int64_t kOuts = 10;
const WeightStore kStore{.kernels = CpuKernels::kAten};

class FewRows : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    numbers_.resize(kOuts * kIn + kOuts);
    for (float& x : numbers_) x = normal(random);
    put("w.weight", {kOuts, kIn}, 0, kOuts * kIn);
    put("w.bias", {kOuts}, kOuts * kIn, kOuts);
  }

  void put(const char* name, std::vector<int64_t> shape, int64_t first, size_t n) {
    TensorView& view = tensors_[name];
    view.shape = std::move(shape);
    view.data = reinterpret_cast<const std::byte*>(numbers_.data() + first);
    view.bytes = n * sizeof(float);
  }

  // Its weights are gone, but for those that are packed.
  Linear packed_only(cpu::Layout layout = cpu::Layout::kInOrder) {
    Linear l = *Linear::load(TensorMap(tensors_), kStore, {{"w"}, {kOuts}, kIn, true}, layout);
    EXPECT_EQ(l.packed_bytes(), kOuts * kIn * 4);
    l.pack();
    at::Tensor plain = l.weight();
    plain.zero_();
    return l;
  }
  Linear whole(cpu::Layout layout = cpu::Layout::kInOrder) {
    return *Linear::load(TensorMap(tensors_), kStore, {{"w"}, {kOuts}, kIn, true}, layout);
  }

  static at::Tensor rows(int64_t n) { return at::randn({n, kIn}); }

  const c10::InferenceMode inference_;
  std::vector<float> numbers_;
  std::map<std::string, TensorView> tensors_;
};

TEST_F(FewRows, ReadPackedWeights) {
  const Linear packed = packed_only(), plain = whole();
  for (const int64_t n : {1, 5, 16}) {
    const at::Tensor x = rows(n);
    at::Tensor got = at::empty({n, kOuts}), want = at::empty({n, kOuts});
    packed.into(got, x);
    plain.into(want, x);
    EXPECT_TRUE(got.equal(want)) << n;

    at::Tensor scratch = at::empty({n, kOuts});
    packed.add_to(got, x, scratch);
    plain.add_to(want, x, scratch);
    EXPECT_TRUE(got.allclose(want)) << n;

    packed.activate_into(got, x, Activation::kRelu);
    plain.activate_into(want, x, Activation::kRelu);
    EXPECT_TRUE(got.allclose(want)) << n;
  }
}

TEST_F(FewRows, AreNormedAndGated) {
  const Linear packed = packed_only(cpu::Layout::kPairs), plain = whole(cpu::Layout::kPairs);
  const Norm norm{NormKind::kRms, at::randn({kIn}), {}, 1e-5};
  RowBuffer scratch(kOuts, at::kFloat, at::kCPU);
  const at::Tensor x = rows(3);
  at::Tensor normed = at::empty({3, kIn});
  at::Tensor got = at::empty({3, kOuts / 2}), want = at::empty({3, kOuts / 2});
  packed.gate_into(got, {x, norm, normed}, Activation::kSilu, scratch);
  plain.gate_into(want, {x, norm, normed}, Activation::kSilu, scratch);
  EXPECT_TRUE(got.allclose(want));
}

TEST_F(FewRows, AndMoreReadTheOthers) {
  const Linear packed = packed_only();
  at::Tensor got = at::empty({17, kOuts});
  packed.into(got, rows(17));
  const at::Tensor bias = got.select(0, 0).clone();  // all that is left
  EXPECT_TRUE(got.equal(bias.expand({17, kOuts})));
  EXPECT_GT(bias.abs().sum().item<float>(), 0);
}

// The CPU's own products have the one copy that they need.
TEST_F(FewRows, AreNoCaseOfTheCpusOwn) {
  const Linear own = *Linear::load(TensorMap(tensors_), WeightStore{}, {{"w"}, {kOuts}, kIn, true});
  EXPECT_EQ(own.packed_bytes(), 0);
}

// Blocks that products do not know are kept as blocks of another type that has the same values.
TEST(StoredBlocks, OfATypeThatAnotherHolds) {
  for (const BlockType type : {BlockType::kQ3K, BlockType::kIq4Nl, BlockType::kQ2K}) {
    const BlockFormat& format = *find_block_format(static_cast<uint32_t>(type));
    const int64_t outs = 5, in = 256, blocks = in / format.values;
    std::vector<std::byte> bytes(static_cast<size_t>(outs * blocks * format.bytes));
    std::mt19937_64 random(3);
    for (std::byte& b : bytes) b = std::byte(random() & 0x3f);  // scales are finite
    TensorView view{.shape = {outs, in}, .data = bytes.data(), .bytes = bytes.size()};
    view.block = &format;
    const auto load = [&] {
      return load_quantized(TensorMap({{"w.weight", view}}), {{"w"}, {outs}, in, false},
                            cpu::Layout::kInOrder);
    };
    const auto packed = load();
    ASSERT_TRUE(packed.ok()) << packed.status();
    ASSERT_EQ(packed->empty(), type == BlockType::kQ2K) << format.name;
    std::vector<float> expected(static_cast<size_t>(format.values)), row(static_cast<size_t>(in));
    for (int64_t i = 0; !packed->empty() && i < outs * blocks; ++i) {
      format.decode(bytes.data() + i * format.bytes, expected.data());
      packed->unpack(i / blocks, row.data());
      EXPECT_TRUE(
          std::equal(expected.begin(), expected.end(), row.begin() + i % blocks * format.values))
          << format.name << ", block " << i;
    }
    bytes[bytes.size() - 1] = bytes[static_cast<size_t>(format.halves[0]) + 1] = std::byte{0x7c};
    EXPECT_EQ(load().ok(), type == BlockType::kQ2K) << "a scale that is not finite";
  }
}

}  // namespace
}  // namespace tandem
