// Narrow number formats hardly change the perplexity of a trained model. python -m
// tuning.dtype_quality measures all held-out files.
#ifdef TANDEM_WITH_TORCH
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <future>
#include <iterator>
#include <string>

#include "tests/engine/host/kit.h"

namespace tandem {
namespace {

constexpr size_t kLength = 2400;  // characters

// Held-out Python.
std::string text(size_t length) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/tuning/corpus.py");
  std::string all{std::istreambuf_iterator<char>(file), {}};
  EXPECT_GT(all.size(), length);
  return all.substr(0, length);
}

double perplexity(Engine& engine, const std::string& model, size_t length, int64_t* tokens) {
  ScoreRequest request;
  request.model = model;
  request.prompt = text(length);
  request.score_prompt = true;
  std::promise<absl::StatusOr<ScoreResult>> promise;
  engine.score(request, [&](auto result) { promise.set_value(std::move(result)); });
  const absl::StatusOr<ScoreResult> result = promise.get_future().get();
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return 0;
  double nats = 0;
  for (size_t i = 1; i < result->prompt.size(); ++i) nats -= *result->prompt[i].logprob;
  *tokens = static_cast<int64_t>(result->prompt.size()) - 1;
  return std::exp(nats / static_cast<double>(*tokens));
}

TEST(NarrowWeights, KeepThePerplexity) {
  EngineConfig config;
  DeviceConfig own;
  own.threads = 2;
  own.memory_bytes = 256 << 20;
  DeviceConfig aten = own;
  aten.index = 1;
  aten.cpu_kernels = CpuKernels::kAten;
  config.devices = {own, aten};
  const struct {
    const char* name;
    DType dtype;
    const char* device;
    double bound;  // of the perplexity's relative change
  } cases[] = {
      {"fp32", DType::kFloat32, "cpu:0", 0},      {"fp64", DType::kFloat64, "cpu:0", 1e-5},
      {"bf16", DType::kBFloat16, "cpu:0", 0.005}, {"fp16", DType::kFloat16, "cpu:0", 0.005},
      {"int8", DType::kInt8, "cpu:0", 0.015},     {"fp32-aten", DType::kFloat32, "cpu:1", 1e-5},
      {"q4_0", DType::kQ40, "cpu:0", 0.05},       {"q4_0-aten", DType::kQ40, "cpu:1", 0.05},
      {"int4", DType::kInt4, "cpu:0", 0.03},      {"int4-aten", DType::kInt4, "cpu:1", 0.03},
      {"fp8-aten", DType::kFp8, "cpu:1", 0.03}};
  for (const auto& c : cases) {
    ModelConfig model;
    model.name = c.name;
    model.path = std::string(TANDEM_SOURCE_DIR) + "/models/code-large";
    model.dtype = c.dtype;
    model.device = c.device;
    model.kv_pages = 80;
    config.models.push_back(model);
    config.deployments.push_back({c.name, c.name, ""});
  }
  const auto engine = testing::make_engine(config);
  ASSERT_NE(engine, nullptr);
  int64_t tokens = 0;
  const double whole = perplexity(*engine, "fp32", kLength, &tokens);
  EXPECT_GT(tokens, 500);
  EXPECT_LT(whole, 60);  // of 4096: it is a trained model
  const double part = perplexity(*engine, "fp32", kLength / 4, &tokens);
  for (const auto& c : cases) {
    const bool slow = c.device == aten.name();  // row by row in LibTorch's operators
    const double want = slow ? part : whole;
    const double got = perplexity(*engine, c.name, slow ? kLength / 4 : kLength, &tokens);
    EXPECT_NEAR(got / want, 1, c.bound) << c.name;
    std::printf("%-9s %8.4f  %+.4f %%\n", c.name, got, 100 * (got / want - 1));
  }
}

}  // namespace
}  // namespace tandem
#endif
