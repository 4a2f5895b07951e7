// Weights and rows in fp8: on a CPU in LibTorch's operators, on CUDA rounded by a kernel and
// multiplied by LibTorch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/backend/torch/model/linear.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"
#include "tests/engine/backend/torch/test_device.h"

namespace tandem {
namespace {

DeviceConfig device_config() { return test_device(0, 1, CpuKernels::kAten); }

// A tensor's rows, rounded to fp8 with a scale per row, in fp64.
struct Rounded {
  at::Tensor numbers, scale;
};
Rounded rounded(const at::Tensor& x) {
  const at::Tensor scale = at::clamp_min(at::amax(at::abs(x), {1}, /*keepdim=*/true) / kFp8Most,
                                         std::numeric_limits<float>::min());
  return {(x / scale).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale.to(at::kDouble),
          scale.to(at::kDouble)};
}

// Two layers' matrices with one input and biases, rounded on the test device.
class Fp8 : public testing::Test {
 protected:
  static constexpr int64_t kIn = 96;
  static constexpr int64_t kOuts = 64;  // 40 of q, 24 of k

  void SetUp() override {
    const DeviceConfig config = device_config();
    const Platform& platform = **find_platform(config);
    if (const absl::Status s = platform.check_dtype(DType::kFp8, config.index); !s.ok()) {
      GTEST_SKIP() << s.message();
    }
    device_ = platform.device(config.index);
    at::manual_seed(3);
    put("q.weight", at::randn({40, kIn}));
    put("k.weight", at::randn({24, kIn}) * 7);
    put("q.bias", at::randn({40}).to(at::kBFloat16).to(at::kFloat));
    put("k.bias", at::randn({24}).to(at::kBFloat16).to(at::kFloat));
    weight_ = at::cat({all_["q.weight"], all_["k.weight"]});
    bias_ = at::cat({all_["q.bias"], all_["k.bias"]});
  }

  void put(const std::string& name, const at::Tensor& t) {
    all_[name] = t.contiguous();
    tensors_[name] = {.shape = t.sizes().vec(),
                      .data = static_cast<const std::byte*>(all_[name].const_data_ptr()),
                      .bytes = all_[name].nbytes()};
  }
  absl::StatusOr<Linear> load(const LinearSpec& spec) const {
    return Linear::load(TensorMap(tensors_), {DType::kFp8, device_, CpuKernels::kAten}, spec);
  }
  at::ScalarType rows_type() const { return device_.is_cpu() ? at::kFloat : at::kBFloat16; }
  at::TensorOptions like() const { return at::device(device_).dtype(rows_type()); }

  // Rows that bf16 holds.
  static at::Tensor rows(int64_t n) { return at::randn({n, kIn}).to(at::kBFloat16).to(at::kFloat); }
  at::Tensor there(const at::Tensor& x) const { return x.to(rows_type()).to(device_); }

  // The results are bf16 on CUDA.
  void expect_close(const at::Tensor& got, const at::Tensor& want) const {
    const double error = (got.to(at::kCPU).to(at::kDouble) - want).norm().item<double>();
    EXPECT_LT(error, (device_.is_cpu() ? 1e-6 : 1e-2) * want.norm().item<double>());
  }

  const c10::InferenceMode inference_;
  at::Device device_ = at::kCPU;
  const LinearSpec two_{{"q", "k"}, {40, 24}, kIn, true};
  std::map<std::string, at::Tensor> all_;
  std::map<std::string, TensorView> tensors_;
  at::Tensor weight_;
  at::Tensor bias_;
};

TEST_F(Fp8, ProductsOfAnyNumberOfRows) {
  const Linear l = *load(two_);
  EXPECT_FALSE(l.weight().defined());
  EXPECT_EQ(l.outs(), kOuts);
  EXPECT_EQ(l.in(), kIn);
  for (const int64_t n : {1, 3, 16, 17, 65}) {
    const at::Tensor x = rows(n), on_device = there(x);
    const at::Tensor y =
        at::linear(rounded(x).numbers, rounded(weight_).numbers, bias_.to(at::kDouble));
    at::Tensor sums = at::empty({n, kOuts}, at::device(device_)),
               out = at::empty({n, kOuts}, like());
    l.into(sums, on_device);
    expect_close(sums, y);
    l.into(out, on_device);
    expect_close(out, y);
    l.activate_into(out, on_device, Activation::kRelu);
    expect_close(out, at::relu(y));
    l.add_to(sums, on_device, out);
    expect_close(sums, 2 * y);
    RowBuffer scratch(kOuts, rows_type(), device_);
    at::Tensor half = at::empty({n, kOuts / 2}, like());
    l.gate_into(half, on_device, Activation::kSilu, scratch);
    expect_close(half, at::silu(y.narrow(1, 0, kOuts / 2)) * y.narrow(1, kOuts / 2, kOuts / 2));
  }
}

// Rounding changes a number by at most 1/16 of it, or half a step of the smallest numbers.
TEST_F(Fp8, ErrorsAreThoseOfRounding) {
  const Linear l = *load(two_);
  const at::Tensor x = rows(33), w = weight_.to(at::kDouble), xd = x.to(at::kDouble);
  at::Tensor got = at::empty({33, kOuts}, at::device(device_));
  l.into(got, there(x));
  const at::Tensor want = at::linear(xd, w, bias_.to(at::kDouble));
  const at::Tensor error = at::abs(got.to(at::kCPU).to(at::kDouble) - want);
  const auto most = [](const at::Tensor& t, const at::Tensor& scale) {
    return at::abs(t) * (1 + 0x1p-4) + scale * 0x1p-10;
  };
  const at::Tensor exact = at::linear(at::abs(xd), at::abs(w));
  at::Tensor bound =
      at::linear(most(xd, rounded(x).scale), most(w, rounded(weight_).scale)) - exact;
  bound.add_(exact * 1e-5);  // of sums in fp32
  if (!device_.is_cpu()) bound.add_(at::abs(want) * 0x1p-7);
  EXPECT_TRUE((error <= bound).all().item<bool>());
  const double relative = (error.norm() / want.norm()).item<double>();
  EXPECT_LT(relative, 0.05);
  EXPECT_GT(relative, 0.005) << "nothing was rounded";
}

// A row's scale is its own: rows of other sizes beside it do not change it.
TEST_F(Fp8, RowsHaveTheirOwnScales) {
  const Linear l = *load({{"q", "k"}, {40, 24}, kIn, false});
  at::Tensor x = rows(4);
  x.select(0, 1).mul_(0x1p-40);
  x.select(0, 2).zero_();
  at::Tensor got = at::empty({4, kOuts}, at::device(device_));
  l.into(got, there(x));
  const at::Tensor want = at::linear(rounded(x).numbers, rounded(weight_).numbers);
  for (const int64_t r : {0, 1, 3}) expect_close(got.select(0, r), want.select(0, r));
  EXPECT_TRUE(got.select(0, 2).eq(0).all().item<bool>());
}

TEST_F(Fp8, TakesAByteForAWeight) {
  EXPECT_EQ(load(two_)->bytes(),
            kOuts * kIn + 4 * kOuts + static_cast<int64_t>(c10::elementSize(rows_type())) * kOuts);
}

TEST_F(Fp8, OtherSizesAndTokensAreNotRounded) {
  put("narrow.weight", at::randn({16, 24}));
  put("odd.weight", at::randn({8, 32}));
  for (const char* name : {"narrow", "odd"}) {
    const auto shape = all_[std::string(name) + ".weight"].sizes();
    const Linear l = *load({{name}, {shape[0]}, shape[1], false});
    EXPECT_TRUE(l.weight().defined()) << name;
    EXPECT_EQ(l.expanded(), std::vector<std::string>{name});
    EXPECT_EQ(l.expanded_bytes(), l.bytes());
  }
  const Linear tokens = *load({.names = {"q"}, .outs = {40}, .in = kIn, .tokens = true});
  EXPECT_TRUE(tokens.weight().defined());
  EXPECT_TRUE(tokens.expanded().empty());
  EXPECT_TRUE(load(two_)->expanded().empty());
}

TEST_F(Fp8, NumbersThatAreNotFiniteAreRefused) {
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    at::Tensor k = all_["k.weight"].clone();
    k.select(0, 5).select(0, 95).fill_(odd);
    put("k.weight", k);
    EXPECT_EQ(load(two_).status().message(),
              "k.weight: row 5: a number that is not finite; allowed: finite numbers, for fp8");
  }
}

// --- Whole models

class Fp8Models : public testing::Test {
 protected:
  void SetUp() override {
    const DeviceConfig config = device_config();
    const absl::Status s = (*find_platform(config))->check_dtype(DType::kFp8, config.index);
    if (!s.ok()) GTEST_SKIP() << s.message();
  }
};

ModelConfig model_of(const Golden& golden, DType dtype) {
  return {.name = "golden", .path = golden.directory(), .dtype = dtype};
}

TEST_F(Fp8Models, AreNearTransformers) {
  for (const char* name : {"llama2", "llama3", "qwen2", "qwen3"}) {
    const Golden golden(name);
    Driver driver(model_of(golden, DType::kFp8), {.page_rows = 16, .pages = 100}, test_shared(), 0,
                  CpuKernels::kAten);
    EXPECT_EQ(driver.shape().dtype, "fp8");
    EXPECT_FALSE(driver.shape().batch_invariant);
    double error = 0, most = 0;
    int64_t compared = 0;
    for (int i = 0; i < golden.prompts(); ++i) {
      const std::string tensor = "prompt_logits." + std::to_string(i);
      if (!golden.has(tensor)) continue;
      const std::vector<Token> prompt = golden.prompt(i);
      RowList all;
      for (int r = 0; r < static_cast<int>(prompt.size()); ++r) all.push_back(r);
      Sequence s = driver.sequence();
      Pass pass = chain_pass(driver.layers(), prompt);
      pass.reading(all_logprobs(all, driver.shape().vocab_size));
      // Row by row, so that steps are captured and replayed where the device has graphs.
      const auto got = logprobs(driver.run(s, pass, i % 2));
      const auto rows = golden.rows(tensor);
      ASSERT_EQ(got.size(), rows.size());
      for (size_t r = 0; r < rows.size(); ++r) {
        const std::vector<double> want = log_softmax(rows[r]);
        for (size_t t = 0; t < want.size(); ++t) {
          const double e = std::abs(got[r][t] - want[t]);
          error += e;
          most = std::max(most, e);
          ++compared;
        }
      }
      driver.release(s);
    }
    ASSERT_GT(compared, 1000);
    error /= static_cast<double>(compared);
    RecordProperty(name, std::to_string(error) + " " + std::to_string(most));
    // Small random models: roundings of a few percent are not averaged out as in trained ones.
    EXPECT_LT(error, 0.3) << name;
    EXPECT_LT(most, 3) << name;
    EXPECT_GT(error, 1e-4) << name << ": nothing was rounded";
    EXPECT_EQ(driver.graph_counts().refused, 0) << driver.graph_counts().reason;
  }
}

TEST_F(Fp8Models, SayWhatIsNotRounded) {
  const auto device = TorchDevice::create(device_config(), test_shared());
  ASSERT_TRUE(device.ok()) << device.status();
  std::string said;
  const auto progress = [&](absl::string_view line) { said += std::string(line); };
  ASSERT_TRUE((*device)->load(ModelId(0), model_of(Golden("llama2"), DType::kFp8), progress).ok());
  EXPECT_NE(said.find("MB of them not in fp8, because of sizes that are not multiples of 16: "
                      "model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj, "
                      "model.layers.2.mlp.down_proj)"),
            std::string::npos)
      << said;
  said.clear();
  ASSERT_TRUE((*device)->load(ModelId(1), model_of(Golden("llama3"), DType::kFp8), progress).ok());
  EXPECT_NE(said.find(", fp8, "), std::string::npos) << said;
  EXPECT_EQ(said.find("not in fp8"), std::string::npos) << said;
}

TEST_F(Fp8Models, CountAByteForAWeight) {
  const auto device = TorchDevice::create(device_config(), test_shared());
  ASSERT_TRUE(device.ok()) << device.status();
  const Golden golden("llama2");  // not tied
  const auto half = (*device)->weight_bytes(model_of(golden, DType::kBFloat16));
  const auto eighth = (*device)->weight_bytes(model_of(golden, DType::kFp8));
  ASSERT_TRUE(half.ok() && eighth.ok()) << half.status() << eighth.status();
  EXPECT_EQ(*eighth, *half / 2 + 2 * 160 * 32);
}

TEST_F(Fp8Models, AreRefusedByTheCpusOwnKernels) {
  const auto device = TorchDevice::create({.threads = 1}, std::make_shared<TorchShared>());
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->load(ModelId(0), model_of(Golden("llama3"), DType::kFp8)).message(),
            "dtype: fp8; allowed: auto, fp32, bf16, fp16, fp64, int8, int4, q4_0, stored on a CPU");
}

}  // namespace
}  // namespace tandem
