// Products of few rows use packed weights, others the plain weights: here on a CPU in LibTorch's
// operators, on CUDA in kernels that have tests of their own. Products of up to 64 rows read
// weights in blocks; larger ones unpack them.
#include "engine/backend/torch/model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/gguf/round_blocks.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "tests/engine/backend/torch/test_device.h"

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

  // All weights but the packed copy are zero.
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

// The CPU's own products need no second copy.
TEST_F(FewRows, NeedNoCopyOnTheCpu) {
  const Linear own = *Linear::load(TensorMap(tensors_), WeightStore{}, {{"w"}, {kOuts}, kIn, true});
  EXPECT_EQ(own.packed_bytes(), 0);
}

// Greedy requests read a copy of an output matrix in 4 bits first.
TEST(OutputMatrix, HasACopyOnTheCpu) {
  const c10::InferenceMode inference;
  at::manual_seed(2);
  const int64_t outs = 65000, in = 64;
  const BlockFormat* const format = find_block_format(static_cast<uint32_t>(BlockType::kQ80));
  const auto row_bytes = static_cast<size_t>(in / format->values * format->bytes);
  std::vector<std::byte> bytes(row_bytes * outs);
  const at::Tensor values = at::randn({outs, in});
  for (int64_t r = 0; r < outs; ++r) {
    const auto* const row = static_cast<const float*>(values.const_data_ptr()) + r * in;
    ASSERT_TRUE(round_row(BlockType::kQ80, {row, in}, bytes.data() + r * row_bytes));
  }
  const TensorMap source(
      {{"w.weight",
        {.shape = {outs, in}, .data = bytes.data(), .bytes = bytes.size(), .block = format}}});
  const WeightStore store{DType::kStored};
  EXPECT_EQ(Linear::load(source, store, {{"w"}, {outs}, in, false})->packed_bytes(), 0);
  const LinearSpec head{.names = {"w"}, .outs = {outs}, .in = in, .tokens = true};
  const Linear plain = *Linear::load(source, store, head);
  Linear screened = *Linear::load(source, store, head);
  EXPECT_NEAR(static_cast<double>(screened.packed_bytes()), outs * (in * 4.5 / 8 + 4), 2000);
  screened.pack();
  for (const int64_t n : {1, 6, 7}) {
    const at::Tensor x = 3 * values.narrow(0, 100, n) + at::randn({n, in}) / 50;
    at::Tensor want = at::empty({n, outs}), got = at::empty({n, outs});
    plain.into(want, x);
    screened.into(got, x);
    EXPECT_TRUE(got.equal(want)) << "all elements";
    int others = 0;
    for (int i = 0; i < 64; ++i) {  // only some are screened at first
      screened.into(got, x, {.first = outs, .argmax = outs});
      EXPECT_TRUE(got.argmax(1).equal(want.argmax(1)));
      EXPECT_TRUE(got.amax(1).equal(want.amax(1)));
      others += got.equal(want) ? 0 : 1;
    }
    EXPECT_EQ(others > 3, n <= 6) << "only with few rows";
  }
}

// Blocks without a product are widened to a type that represents the same values.
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

// A file's matrices in blocks, stacked, on the test device, compared with their decoded values.
class InBlocks : public testing::Test {
 protected:
  static constexpr int64_t kWide = 96;

  void SetUp() override {
    at::manual_seed(9);
    put("q.weight", BlockType::kQ41, 24);
    put("k.weight", BlockType::kQ80, 16);
    put("up.weight", BlockType::kQ41, 24);
    bias_ = at::randn({40});
    TensorView& view = tensors_["q.bias"];
    view.shape = {24};
    view.data = static_cast<const std::byte*>(bias_.const_data_ptr());
    view.bytes = 24 * sizeof(float);
    tensors_["k.bias"] = view;
    tensors_["k.bias"].shape = {16};
    tensors_["k.bias"].data += 24 * sizeof(float);
  }

  void put(const char* name, BlockType type, int64_t outs) {
    const BlockFormat* const format = find_block_format(static_cast<uint32_t>(type));
    const auto row_bytes = static_cast<size_t>(kWide / format->values * format->bytes);
    auto& bytes = bytes_.emplace_back(row_bytes * static_cast<size_t>(outs));
    for (int64_t r = 0; r < outs; ++r) {
      const at::Tensor row = at::randn({kWide});
      const std::span values(static_cast<const float*>(row.const_data_ptr()), size_t{kWide});
      ASSERT_TRUE(round_row(type, values, bytes.data() + static_cast<size_t>(r) * row_bytes));
    }
    tensors_[name] = {
        .shape = {outs, kWide}, .data = bytes.data(), .bytes = bytes.size(), .block = format};
  }

  Linear load(const LinearSpec& spec, DType dtype, cpu::Layout layout = cpu::Layout::kInOrder) {
    const WeightStore store{dtype, device_, CpuKernels::kAten};
    return *Linear::load(TensorMap(tensors_), store, spec, layout);
  }
  // The reference, on the host.
  Linear host(const LinearSpec& spec) {
    return *Linear::load(TensorMap(tensors_),
                         {DType::kFloat32, at::Device(at::kCPU), CpuKernels::kAten}, spec);
  }

  at::ScalarType rows_type() const { return device_.is_cpu() ? at::kFloat : at::kBFloat16; }

  // Rows are rounded to 8 bits on a GPU, and nothing is on a CPU in LibTorch's operators.
  void expect_close(const at::Tensor& got, const at::Tensor& want) const {
    const at::Tensor g = got.to(at::kCPU).to(at::kFloat);
    if (device_.is_cpu()) {
      EXPECT_TRUE(g.allclose(want, 1e-5, 1e-5));
    } else {
      EXPECT_LT((g - want).norm().item<float>(), 0.02f * want.norm().item<float>());
    }
  }

  static at::Device device() {
    const DeviceConfig config = test_device();
    return config.kind == DeviceKind::kCpu
               ? at::Device(at::kCPU)
               : at::Device(at::kCUDA, static_cast<int8_t>(config.index));
  }

  const c10::InferenceMode inference_;
  const at::Device device_ = device();
  const LinearSpec two_{{"q", "k"}, {24, 16}, kWide, true};
  std::map<std::string, TensorView> tensors_;
  std::deque<std::vector<std::byte>> bytes_;
  at::Tensor bias_;
};

TEST_F(InBlocks, ProductsOfAnyNumberOfRows) {
  const Linear blocks = load(two_, DType::kStored), plain = host(two_);
  EXPECT_FALSE(blocks.weight().defined());
  EXPECT_EQ(blocks.most_rows(), kMostBlockRows);
  EXPECT_GT(plain.most_rows(), 1 << 20);
  EXPECT_EQ(blocks.outs(), 40);
  EXPECT_EQ(blocks.in(), kWide);
  EXPECT_EQ(blocks.parameters(), 40 * kWide + 40);
  for (const int64_t n : {1, 16, 17, 64, 65}) {
    const at::Tensor x = at::randn({n, kWide}), there = x.to(rows_type()).to(device_);
    at::Tensor got = at::empty({n, 40}, at::device(device_)), want = at::empty({n, 40});
    blocks.into(got, there);
    plain.into(want, x);
    expect_close(got, want);

    at::Tensor scratch = at::empty({n, 40}, at::device(device_).dtype(rows_type())), none;
    blocks.add_to(got, there, scratch);
    plain.add_to(want, x, none);
    expect_close(got, want);

    blocks.activate_into(scratch, there, Activation::kRelu);
    plain.activate_into(want, x, Activation::kRelu);
    expect_close(scratch, want);
  }
}

TEST_F(InBlocks, AreNormedAndGated) {
  const LinearSpec spec{{"q", "up"}, {24, 24}, kWide, false};
  const Linear blocks = load(spec, DType::kStored, cpu::Layout::kPairs), plain = host(spec);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const Norm norm{kind, at::randn({kWide}), at::randn({kWide}), 1e-5};
    const Norm there{kind, norm.weight.to(device_), norm.bias.to(device_), 1e-5};
    for (const int64_t n : {3, 70}) {
      const at::Tensor x = at::randn({n, kWide}), residual = x.to(device_);
      const auto like = at::device(device_).dtype(rows_type());
      RowBuffer scratch(48, rows_type(), device_), host_scratch(48, at::kFloat, at::kCPU);
      at::Tensor normed = at::empty({n, kWide}, like), host_normed = at::empty({n, kWide});
      at::Tensor got = at::empty({n, 24}, like), want = at::empty({n, 24});
      blocks.gate_into(got, {residual, there, normed}, Activation::kSilu, scratch);
      plain.gate_into(want, {x, norm, host_normed}, Activation::kSilu, host_scratch);
      expect_close(got, want);
    }
  }
}

TEST_F(InBlocks, AreLookedUp) {
  const LinearSpec spec{{"k"}, {16}, kWide, false};
  const Linear blocks = load(spec, DType::kStored), plain = host(spec);
  const std::vector<int32_t> token{15, -1, 0, 7};
  at::Tensor on_device = at::empty({4}, at::kInt);
  std::memcpy(on_device.mutable_data_ptr(), token.data(), sizeof(int32_t) * token.size());
  on_device = on_device.to(device_);
  at::Tensor got = at::zeros({4, kWide}, at::device(device_));
  blocks.look_up(got, static_cast<const int32_t*>(on_device.const_data_ptr()));
  const at::Tensor numbers = got.to(at::kCPU);
  for (int64_t r = 0; r < 4; ++r) {
    const int32_t t = token[static_cast<size_t>(r)];
    const at::Tensor want = t < 0 ? at::zeros({kWide}) : plain.weight().select(0, t);
    EXPECT_TRUE(numbers.select(0, r).equal(want)) << r;
  }
}

TEST_F(InBlocks, OfFourBitsAreKeptAsQ40AndOthersRounded) {
  put("kept.weight", BlockType::kQ40, 32);
  put("wide.weight", BlockType::kQ80, 32);
  // Relative to the file's values.
  const auto error = [&](const char* name, bool tokens) {
    LinearSpec spec{{name}, {32}, kWide, false};
    spec.tokens = tokens;
    const at::Tensor token = at::arange(32, at::kInt).to(device_);
    at::Tensor got = at::zeros({32, kWide}, at::device(device_));
    load(spec, DType::kQ40).look_up(got, static_cast<const int32_t*>(token.const_data_ptr()));
    const at::Tensor want = host(spec).weight();
    return ((got.to(at::kCPU) - want).norm() / want.norm()).item<float>();
  };
  EXPECT_EQ(error("kept", false), 0);
  EXPECT_EQ(error("kept", true), 0);
  EXPECT_GT(error("wide", true), 0.05);  // Q4_1
  EXPECT_GT(error("wide", false), 1.1 * error("wide", true));
  EXPECT_LT(error("wide", false), 0.12);  // Q4_0
}

// Blocks of other types are expanded, and reported.
TEST_F(InBlocks, OfTypesWithoutProductsAreExpanded) {
  const LinearSpec spec{{"k"}, {16}, kWide, false};
  EXPECT_EQ(load(spec, DType::kStored).expanded_bytes(), 0);
  const BlockFormat* const other = find_block_format(static_cast<uint32_t>(BlockType::kQ2K));
  bytes_.emplace_back(static_cast<size_t>(16 * other->bytes));
  tensors_["k.weight"].shape = {16, 256};
  tensors_["k.weight"].block = other;
  tensors_["k.weight"].data = bytes_.back().data();
  tensors_["k.weight"].bytes = bytes_.back().size();
  const Linear expanded = load({{"k"}, {16}, 256, false}, DType::kStored);
  EXPECT_TRUE(expanded.weight().defined());
  EXPECT_EQ(expanded.expanded_bytes(), expanded.bytes());
}

}  // namespace
}  // namespace tandem
