// LoRA adapters on a device: against PEFT, and rows of many adapters in one batch.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/backend/torch/step_graphs.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/gguf/round_blocks.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"
#include "tests/engine/backend/torch/lora_folders.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/source_dir.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using Rows = std::vector<std::vector<float>>;

const std::vector<std::string> kGoldenLoras{"qwen2", "gemma3", "phi3", "llama2", "falcon_groups"};

std::string model_path(const std::string& name) {
  return source_dir() + "/tests/data/golden_models/" + name;
}

ExtraConfig golden_lora(const std::string& name) {
  return {"tuned", source_dir() + "/tests/data/golden_loras/" + name};
}

ModelConfig model_with(const std::string& name, std::vector<ExtraConfig> loras,
                       DType dtype = DType::kFloat32) {
  ModelConfig m;
  m.name = name;
  m.path = model_path(name);
  m.dtype = dtype;
  m.loras = std::move(loras);
  return m;
}

// What PEFT computed with an adapter of tests/data/golden_loras.
struct GoldenLora {
  explicit GoldenLora(const std::string& name) {
    const Checkpoint file = *Checkpoint::open_file(golden_lora(name).path, "golden.safetensors");
    const TensorView& ids = *file.find("prompt");
    prompt.resize(ids.bytes / sizeof(int32_t));
    std::memcpy(prompt.data(), ids.data, ids.bytes);
    const TensorView& view = *file.find("logits");
    std::vector<float> row(static_cast<size_t>(view.shape[1]));
    for (int64_t r = 0; r < view.shape[0]; ++r) {
      EXPECT_TRUE(to_float(view, r * view.shape[1], row).ok());
      logprobs.push_back(log_softmax(row));
    }
  }

  std::vector<Token> prompt;
  std::vector<std::vector<double>> logprobs;
};

RowList all_rows(size_t n) {
  RowList rows;
  for (int r = 0; r < static_cast<int>(n); ++r) rows.push_back(r);
  return rows;
}

// Log-probabilities at all positions, in chunks of `chunk` rows; 0: at once.
Rows read_all(Driver& driver, const std::vector<Token>& prompt, LoraId lora, int chunk = 0) {
  Sequence s = driver.sequence();
  s.lora = lora;
  Pass pass = chain_pass(driver.layers(), prompt);
  pass.reading(all_logprobs(all_rows(prompt.size()), driver.shape().vocab_size));
  Rows got = logprobs(driver.run(s, pass, chunk));
  driver.release(s);
  return got;
}

double distance(const Rows& got, const std::vector<std::vector<double>>& want) {
  EXPECT_EQ(got.size(), want.size());
  double most = 0;
  for (size_t r = 0; r < want.size(); ++r) {
    for (size_t t = 0; t < want[r].size(); ++t) {
      const double d = std::abs(static_cast<double>(got[r][t]) - want[r][t]);
      most = std::isnan(d) ? INFINITY : std::max(most, d);
    }
  }
  return most;
}

class GoldenLoras : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLoras, LogitsAreThoseOfPeft) {
  const GoldenLora golden(GetParam());
  Driver driver(model_with(GetParam(), {golden_lora(GetParam())}));
  const Rows got = read_all(driver, golden.prompt, LoraId(0));
  EXPECT_LT(distance(got, golden.logprobs), 1e-4);
  EXPECT_GT(distance(read_all(driver, golden.prompt, LoraId()), golden.logprobs), 0.2);
  expect_rows(read_all(driver, golden.prompt, LoraId(0), 3), got);
}

TEST_P(GoldenLoras, InFp64) {
  const GoldenLora golden(GetParam());
  Driver driver(model_with(GetParam(), {golden_lora(GetParam())}, DType::kFloat64));
  EXPECT_LT(distance(read_all(driver, golden.prompt, LoraId(0)), golden.logprobs), 1e-4);
}

// The base weights are rounded, the adapter is not: rounding moves the answers about as far as
// those of the base model.
TEST_P(GoldenLoras, OnRoundedWeightsAreNearTheMergedModel) {
  const GoldenLora golden(GetParam());
  for (const auto& [dtype, bound] :
       {std::pair{DType::kBFloat16, 0.25}, std::pair{DType::kFloat16, 0.05},
        std::pair{DType::kInt8, 0.5}, std::pair{DType::kInt4, 3.0}}) {
    if (!test_device_holds(dtype)) continue;
    Driver driver(model_with(GetParam(), {golden_lora(GetParam())}, dtype));
    const Rows got = read_all(driver, golden.prompt, LoraId(0));
    const double rounded = test_device_keeps_bits() ? bound : std::max(bound, rounding_of(dtype));
    EXPECT_LT(distance(got, golden.logprobs), rounded) << static_cast<int>(dtype);
    expect_rows(read_all(driver, golden.prompt, LoraId(0), 3), got, rounded);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenLoras, testing::ValuesIn(kGoldenLoras),
                         [](const auto& info) { return info.param; });

// ggml's name of a tensor.
std::string ggml_name(const std::string& name) {
  return absl::StrReplaceAll(name, {{"model.embed_tokens", "token_embd"},
                                    {"model.norm", "output_norm"},
                                    {"lm_head", "output"},
                                    {"base_model.model.", ""},
                                    {"model.layers.", "blk."},
                                    {"transformer.h.", "blk."},
                                    {"input_layernorm", "attn_norm"},
                                    {"post_attention_layernorm", "ffn_norm"},
                                    {"self_attn.q_proj", "attn_q"},
                                    {"self_attn.k_proj", "attn_k"},
                                    {"self_attn.v_proj", "attn_v"},
                                    {"self_attn.o_proj", "attn_output"},
                                    {"self_attn.qkv_proj", "attn_qkv"},
                                    {"self_attention.query_key_value", "attn_qkv"},
                                    {"self_attention.dense", "attn_output"},
                                    {"mlp.gate_up_proj", "ffn_up"},
                                    {"mlp.gate_proj", "ffn_gate"},
                                    {"mlp.up_proj", "ffn_up"},
                                    {"mlp.down_proj", "ffn_down"},
                                    {"mlp.dense_h_to_4h", "ffn_up"},
                                    {"mlp.dense_4h_to_h", "ffn_down"},
                                    {".lora_A.weight", ".weight.lora_a"},
                                    {".lora_B.weight", ".weight.lora_b"}});
}

// The tensor with its rows in ggml's order: of Llama's queries and keys, and of Falcon's groups.
std::vector<float> ggml_rows(const std::string& name, const TensorView& view,
                             const DecoderConfig& c) {
  std::vector<float> from(static_cast<size_t>(view.elements()));
  EXPECT_TRUE(to_float(view, 0, from).ok());
  const auto width = static_cast<size_t>(view.shape.back());
  const bool permuted = c.model_type == "llama" &&
                        (absl::StrContains(name, "q_proj") || absl::StrContains(name, "k_proj"));
  const bool grouped = absl::StrContains(name, "query_key_value");
  if (absl::StrContains(name, "lora_A") || (!permuted && !grouped)) return from;
  const HeadGroups groups{c.kv_heads, c.heads / c.kv_heads, c.head_dim};
  std::vector<float> to = from;
  for (int64_t r = 0; r < view.shape[0]; ++r) {
    const auto source = static_cast<size_t>(permuted ? r : groups.stored_row(r));
    const auto at = static_cast<size_t>(permuted ? stored_row(r, c.head_dim) : r);
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(source * width), width,
                to.begin() + static_cast<ptrdiff_t>(at * width));
  }
  return to;
}

void round_to_q80(test::GgufBuilder::Tensor* tensor) {
  const auto width = static_cast<size_t>(tensor->shape.back());
  std::vector<float> values(tensor->data.size() / sizeof(float));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  tensor->type = static_cast<uint32_t>(BlockType::kQ80);
  tensor->data.assign(values.size() / 32 * 34, '\0');
  for (size_t r = 0; r < values.size() / width; ++r) {
    EXPECT_TRUE(round_row(BlockType::kQ80, std::span(values).subspan(r * width, width),
                          reinterpret_cast<std::byte*>(tensor->data.data()) + r * width / 32 * 34));
  }
}

// A golden model as ggml's converter writes it. quantized: matrices of whole blocks become Q8_0.
std::string model_gguf(const std::string& arch, const std::string& model, bool quantized) {
  const std::string directory = model_path(model);
  const DecoderConfig c = *load_hf_config(directory);
  const Checkpoint checkpoint = *Checkpoint::open(directory);
  test::GgufBuilder b;
  const auto set = [&](const char* key, int value) {
    b.set(absl::StrCat(arch, ".", key), static_cast<uint32_t>(value));
  };
  b.set("general.architecture", arch);
  set("block_count", c.layers);
  set("context_length", c.max_positions);
  set("embedding_length", c.hidden_size);
  set("feed_forward_length", c.intermediate_size);
  set("attention.head_count", c.heads);
  set("attention.head_count_kv", c.kv_heads);
  set("rope.dimension_count", c.head_dim);
  b.set(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(c.norm_eps));
  b.set(arch + ".rope.freq_base", static_cast<float>(c.rope.theta));
  std::vector<std::string> tokens;
  for (int i = 0; i < c.vocab_size; ++i) tokens.push_back(absl::StrCat("t", i));
  b.set("tokenizer.ggml.tokens", tokens);
  b.set("tokenizer.ggml.token_type",
        std::vector<int32_t>(static_cast<size_t>(c.vocab_size), int32_t{1}));
  b.set("tokenizer.ggml.eos_token_id", 2u);
  for (const std::string& name : checkpoint.names()) {
    const TensorView& view = *checkpoint.find(name);
    b.tensor(ggml_name(name), view.shape, ggml_rows(name, view, c));
    const bool blocks = view.shape.size() == 2 && view.shape.back() % 32 == 0;
    if (quantized && blocks) round_to_q80(&b.tensors.back());
  }
  return b.file();
}

// An adapter of tests/data/golden_loras as llama.cpp's converter writes it.
test::GgufBuilder adapter_gguf(const std::string& arch, const std::string& model) {
  const std::string folder = golden_lora(model).path;
  const DecoderConfig c = *load_hf_config(model_path(model));
  const LoraFile file = *LoraFile::open(folder, c);
  test::GgufBuilder b;
  b.set("general.type", "adapter").set("adapter.type", "lora").set("general.architecture", arch);
  for (const LoraModule& m : file.modules) {
    for (const std::string end : {".lora_A.weight", ".lora_B.weight"}) {
      const TensorView& view = *file.tensors.find(m.name + end);
      std::vector<float> values = ggml_rows(m.name + end, view, c);
      // GGUF files have one alpha, and no other scale.
      if (end == ".lora_B.weight") {
        for (float& v : values) v = static_cast<float>(v * m.scale);
      }
      b.tensor(ggml_name(m.name + end), view.shape, values);
    }
  }
  return b;
}

TEST(LoraGguf, RowsOfQueriesAndKeysAreInTheAdaptersOrder) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "CPU devices only";
  for (const auto& [arch, model] : {std::pair{"llama", "llama2"}, std::pair{"qwen2", "qwen2"}}) {
    SCOPED_TRACE(model);
    const GoldenLora golden(model);
    const test::TempDir dir;
    const std::string lora = dir.write("lora.gguf", adapter_gguf(arch, model).file());
    for (const auto& [quantized, bound] : {std::pair{false, 1e-4}, std::pair{true, 0.5}}) {
      ModelConfig config = model_with(model, {golden_lora(model), {"gguf", lora}}, DType::kAuto);
      config.path = dir.write("model.gguf", model_gguf(arch, model, quantized));
      Driver driver(config);
      EXPECT_EQ(driver.shape().dtype, "stored");
      EXPECT_LT(distance(read_all(driver, golden.prompt, LoraId(0)), golden.logprobs), bound);
      EXPECT_LT(distance(read_all(driver, golden.prompt, LoraId(1)), golden.logprobs), bound);
      EXPECT_GT(distance(read_all(driver, golden.prompt, LoraId()), golden.logprobs),
                quantized ? bound / 2 : 2 * bound);
    }
  }
}

TEST(LoraGguf, AdaptersAreThoseOfFolders) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "CPU devices only";
  for (const auto& [arch, model] :
       {std::pair{"llama", "llama2"}, std::pair{"qwen2", "qwen2"}, std::pair{"gemma3", "gemma3"},
        std::pair{"phi3", "phi3"}, std::pair{"falcon", "falcon_groups"}}) {
    SCOPED_TRACE(model);
    const GoldenLora golden(model);
    const test::TempDir dir;
    const std::string lora = dir.write("lora.gguf", adapter_gguf(arch, model).file());
    Driver driver(model_with(model, {{"gguf", lora}}));
    EXPECT_LT(distance(read_all(driver, golden.prompt, LoraId(0)), golden.logprobs), 1e-4);
  }
}

// Types that llama.cpp's converter writes. The same numbers, as far as the type has them.
TEST(LoraGguf, TypesOfNumbers) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "CPU devices only";
  const GoldenLora golden("qwen2");
  for (const BlockType type : {BlockType::kF16, BlockType::kBF16, BlockType::kQ80}) {
    SCOPED_TRACE(static_cast<int>(type));
    test::GgufBuilder b = adapter_gguf("qwen2", "qwen2");
    int changed = 0;
    for (test::GgufBuilder::Tensor& t : b.tensors) {
      if (type == BlockType::kQ80) {
        if (t.shape.back() % 32 != 0) continue;
        round_to_q80(&t);
      } else {
        std::vector<float> values(t.data.size() / sizeof(float));
        std::memcpy(values.data(), t.data.data(), t.data.size());
        t.type = static_cast<uint32_t>(type);
        t.data.clear();
        for (const float v : values) {
          t.data += type == BlockType::kF16 ? test::bytes_of(c10::Half(v).x)
                                            : test::bytes_of(c10::BFloat16(v).x);
        }
      }
      ++changed;
    }
    EXPECT_GT(changed, 0);
    const test::TempDir dir;
    Driver driver(model_with("qwen2", {{"gguf", dir.write("lora.gguf", b.file())}}));
    const double far = distance(read_all(driver, golden.prompt, LoraId(0)), golden.logprobs);
    EXPECT_GT(far, 0);
    EXPECT_LT(far, type == BlockType::kF16 ? 0.01 : 0.2);
  }
}

// Random adapters of a golden model.
std::vector<ExtraConfig> random_loras(const test::LoraFolders& folders, int n) {
  std::vector<ExtraConfig> loras;
  for (int i = 0; i < n; ++i) {
    // Some leave linear layers as they are.
    std::vector<LoraPart> parts = test::kEveryLoraPart;
    if (i % 4 == 1) parts = {LoraPart::kQkv, LoraPart::kDown};
    if (i % 4 == 2) parts = {LoraPart::kUp};
    // Of three types, in one batch.
    constexpr const char* kTypes[] = {"F32", "BF16", "F16"};
    loras.push_back(folders.write(absl::StrCat("lora", i), 1 + i % 9, static_cast<uint64_t>(i) + 1,
                                  parts, 0.2F, kTypes[i % 3]));
  }
  return loras;
}

class LoraBatches : public testing::TestWithParam<std::string> {};

// Bits where the device keeps them.
TEST_P(LoraBatches, RowsHaveTheBitsOfTheirSequenceAlone) {
  constexpr int kLoras = 32;
  const test::LoraFolders folders(*load_hf_config(model_path(GetParam())));
  for (const DType dtype : {DType::kFloat32, DType::kInt8, DType::kInt4}) {
    if (!test_device_holds(dtype)) continue;
    // On CUDA, products of more than 64 rows of int4 do not round the rows to 8 bits.
    const double rounding = dtype == DType::kInt4 ? 1.0 : rounding_of(dtype);
    const PoolSize size{.page_rows = 4, .pages = 400, .frontier_pages = 1};
    Driver driver(model_with(GetParam(), random_loras(folders, kLoras), dtype), size);
    Driver plain(model_with(GetParam(), {}, dtype), size);
    ASSERT_EQ(driver.shape().loras.size(), size_t{kLoras});
    const int vocab = driver.shape().vocab_size;
    // One sequence per adapter, two without, and one more of adapter 5; of several lengths.
    std::vector<Sequence> sequences;
    std::vector<Pass> passes;
    std::vector<Rows> want;
    for (int i = 0; i < kLoras + 3; ++i) {
      const LoraId lora = i < kLoras ? LoraId(i) : i == kLoras ? LoraId(5) : LoraId();
      const auto tokens = random_tokens(1 + i % 5, vocab, static_cast<uint64_t>(i) + 50);
      want.push_back(read_all(driver, tokens, lora));
      if (!lora.valid()) expect_rows(want.back(), read_all(plain, tokens, lora), rounding);
      if (lora.valid()) EXPECT_NE(want.back(), read_all(plain, tokens, LoraId()));
      sequences.push_back(driver.sequence());
      sequences.back().lora = lora;
      passes.push_back(chain_pass(driver.layers(), tokens));
      passes.back().reading(all_logprobs(all_rows(tokens.size()), vocab));
    }
    // Rows without an adapter are neither the first nor the last.
    std::vector<Driver::Item> items;
    for (size_t i = 0; i < passes.size(); ++i) {
      const size_t at = (i * 11) % passes.size();
      items.push_back({&sequences[at], &passes[at]});
    }
    const std::vector<WorkResult> results = driver.run(items);
    for (size_t i = 0; i < items.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      expect_rows(logprobs(results[i].readout), want[(i * 11) % passes.size()], rounding);
    }
  }
}

// The same batches by the interface of CUDA's kernels, in LibTorch's operators: rows name their
// adapter by its address, and products of few and of many rows get additions before the gate.
TEST_P(LoraBatches, RowsFindTheirAdapterByItsAddress) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "LibTorch's operators on CPUs";
  constexpr int kLoras = 8;
  const test::LoraFolders folders(*load_hf_config(model_path(GetParam())));
  const ModelConfig config = model_with(GetParam(), random_loras(folders, kLoras));
  const PoolSize size{.page_rows = 4, .pages = 100, .frontier_pages = 1};
  Driver own(config, size);
  Driver aten(config, size, test_shared(), 0, CpuKernels::kAten);
  const int vocab = own.shape().vocab_size;
  for (const int sequences : {3, 12}) {
    std::vector<Sequence> all;
    std::vector<Pass> passes;
    std::vector<Rows> want;
    std::vector<Driver::Item> items;
    for (int i = 0; i < sequences; ++i) {
      const LoraId lora = i % 4 == 1 ? LoraId() : LoraId(i % kLoras);
      const auto tokens = random_tokens(1 + i % 3, vocab, static_cast<uint64_t>(i) + 70);
      want.push_back(read_all(own, tokens, lora));
      all.push_back(aten.sequence());
      all.back().lora = lora;
      passes.push_back(chain_pass(aten.layers(), tokens));
      passes.back().reading(all_logprobs(all_rows(tokens.size()), vocab));
    }
    for (size_t i = 0; i < passes.size(); ++i) items.push_back({&all[i], &passes[i]});
    const std::vector<WorkResult> results = aten.run(items);
    for (size_t i = 0; i < items.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("sequence ", i, " of ", sequences));
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      const Rows got = logprobs(results[i].readout);
      ASSERT_EQ(got.size(), want[i].size());
      for (size_t r = 0; r < got.size(); ++r) {
        for (size_t t = 0; t < got[r].size(); ++t) ASSERT_NEAR(got[r][t], want[i][r][t], 1e-3);
      }
    }
    for (Sequence& s : all) aten.release(s);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LoraBatches,
                         testing::Values("llama2", "qwen2", "gemma3", "phi3", "gpt2",
                                         "falcon_groups", "starcoder2"),
                         [](const auto& info) { return info.param; });

class LoraDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "CPU devices only";
  }

  static absl::Status load(const ModelConfig& config) {
    auto device = TorchDevice::create(test_device(), test_shared());
    EXPECT_TRUE(device.ok()) << device.status();
    return (*device)->load(ModelId(7000), config);
  }

  const test::LoraFolders folders_{*load_hf_config(model_path("llama2"))};
  const std::vector<Token> tokens_ = random_tokens(11, 160, 3);
};

// Rows that stop at a layer and continue in a batch with other adapters.
TEST_F(LoraDevice, FrontierRowsContinueWithTheirAdapter) {
  Driver driver(model_with("llama2", random_loras(folders_, 4)));
  const int vocab = driver.shape().vocab_size;
  const int layers = driver.layers();
  for (int stop = 1; stop < layers; ++stop) {
    std::vector<Sequence> sequences;
    std::vector<Pass> lower, upper;
    std::vector<Rows> want;
    std::vector<Driver::Item> below, above;
    const int n = 5;
    lower.reserve(n), upper.reserve(n), sequences.reserve(n);
    for (int i = 0; i < n; ++i) {
      const LoraId lora = i < 4 ? LoraId(i) : LoraId();
      want.push_back(read_all(driver, tokens_, lora));
      sequences.push_back(driver.sequence());
      sequences.back().lora = lora;
      lower.push_back(chain_pass(i % 2 == 0 ? stop : layers, std::span(tokens_).first(6)));
      upper.push_back(chain_pass(layers, std::span(tokens_).subspan(6)));
      upper.back().reading(all_logprobs(all_rows(5), vocab));
      below.push_back({&sequences.back(), &lower.back()});
    }
    for (const WorkResult& r : driver.run(below)) ASSERT_TRUE(r.status.ok()) << r.status;
    for (int i = 0; i < n; ++i) {
      above.push_back({&sequences[static_cast<size_t>(i)], &upper[static_cast<size_t>(i)]});
    }
    const std::vector<WorkResult> results = driver.run(above);
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("sequence ", i, ", stop ", stop));
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      EXPECT_EQ(logprobs(results[i].readout), Rows(want[i].begin() + 6, want[i].end()));
    }
    for (Sequence& s : sequences) driver.release(s);
  }
}

// An early head reads the adapted rows of its layer.
TEST_F(LoraDevice, EarlyHeadsReadAdaptedRows) {
  const test::AdapterFolders heads(model_path("llama2"));
  const auto width = static_cast<size_t>(heads.base.hidden_size);
  std::vector<float> unit(width * width);
  for (size_t i = 0; i < width; ++i) unit[i * width + i] = 1;
  const std::vector<int64_t> square(2, heads.base.hidden_size);
  ModelConfig config = model_with("llama2", random_loras(folders_, 1));
  config.extras = {heads.write("head", {{"kind", "head"}, {"layer", 1}},
                               {{"down.weight", square, unit}, {"up.weight", square, unit}})};
  Driver driver(config);
  ModelConfig short_config = model_with("llama2", config.loras);
  short_config.layers = 1;
  Driver part(short_config);
  const auto read = [&](LoraId lora) {
    Sequence s = driver.sequence();
    s.lora = lora;
    Pass pass = chain_pass(driver.layers(), tokens_);
    Read wanted = all_logprobs(all_rows(tokens_.size()), driver.shape().vocab_size);
    wanted.at = 1;
    wanted.head = HeadId(0);
    pass.reading(wanted);
    return logprobs(driver.run(s, pass));
  };
  // h + h: the norm takes the factor out.
  for (const LoraId lora : {LoraId(), LoraId(0)}) {
    const Rows got = read(lora), want = read_all(part, tokens_, lora);
    for (size_t r = 0; r < want.size(); ++r) {
      for (size_t t = 0; t < want[r].size(); ++t) ASSERT_NEAR(got[r][t], want[r][t], 1e-3);
    }
  }
  EXPECT_NE(read(LoraId()), read(LoraId(0)));
}

TEST_F(LoraDevice, ShardsGiveTheBitsOfOneDevice) {
  const std::vector<ExtraConfig> loras = random_loras(folders_, 3);
  Driver whole(model_with("llama2", loras));
  ModelConfig config = model_with("llama2", loras);
  config.shards = {{"cpu:0", 1}, {"cpu:1", whole.layers() - 1}};
  Driver sharded(config);
  EXPECT_EQ(sharded.shape().weight_bytes, whole.shape().weight_bytes);
  for (const LoraId lora : {LoraId(), LoraId(0), LoraId(2)}) {
    EXPECT_EQ(read_all(sharded, tokens_, lora, 4), read_all(whole, tokens_, lora));
  }
}

TEST_F(LoraDevice, LibTorchsOperatorsAgree) {
  const std::vector<ExtraConfig> loras = random_loras(folders_, 3);
  Driver own(model_with("llama2", loras));
  const auto shared = test_shared();
  Driver aten(model_with("llama2", loras), {.page_rows = 4, .pages = 50, .frontier_pages = 1},
              shared, 0, CpuKernels::kAten);
  for (const LoraId lora : {LoraId(0), LoraId(1), LoraId(2)}) {
    const Rows got = read_all(aten, tokens_, lora), want = read_all(own, tokens_, lora);
    for (size_t r = 0; r < want.size(); ++r) {
      for (size_t t = 0; t < want[r].size(); ++t) ASSERT_NEAR(got[r][t], want[r][t], 1e-4);
    }
  }
}

TEST_F(LoraDevice, ShapesAndMemoryAreKnown) {
  Driver plain(model_with("qwen2", {}));
  Driver driver(model_with("qwen2", {golden_lora("qwen2"), {"twice", golden_lora("qwen2").path}}));
  const std::vector<LoraShape>& loras = driver.shape().loras;
  ASSERT_EQ(loras.size(), 2u);
  EXPECT_EQ(loras[0].name, "tuned");
  EXPECT_EQ(loras[1].name, "twice");
  EXPECT_EQ(loras[0].rank, 7);
  const auto file = Checkpoint::open_file(golden_lora("qwen2").path, "adapter_model.safetensors");
  EXPECT_GE(loras[0].bytes, file->total_elements() * static_cast<int64_t>(sizeof(uint16_t)));
  EXPECT_EQ(driver.shape().weight_bytes,
            plain.shape().weight_bytes + loras[0].bytes + loras[1].bytes);
  EXPECT_EQ(driver.shape().fingerprint, plain.shape().fingerprint);
}

// Without loss: the answers have the bits of those with the numbers widened to fp32.
TEST_F(LoraDevice, AdaptersKeepTheTypeOfTheirFile) {
  for (const std::string& name : kGoldenLoras) {
    SCOPED_TRACE(name);
    const GoldenLora golden(name);
    ModelConfig config = model_with(name, {golden_lora(name)});
    Driver own(config);
    config.adapter_dtype = DType::kFloat32;
    Driver wide(config);
    EXPECT_EQ(read_all(own, golden.prompt, LoraId(0)), read_all(wide, golden.prompt, LoraId(0)));
    const int64_t narrower = name == "phi3" ? 1 : 2;  // its file is fp32
    EXPECT_EQ(own.shape().loras[0].bytes * narrower, wide.shape().loras[0].bytes);
  }
}

TEST_F(LoraDevice, AdaptersAreRoundedIfThatIsConfigured) {
  const GoldenLora golden("phi3");
  ModelConfig config = model_with("phi3", {golden_lora("phi3")});
  Driver wide(config);
  const Rows want = read_all(wide, golden.prompt, LoraId(0));
  for (const auto& [dtype, bound] :
       {std::pair{DType::kBFloat16, 0.1}, std::pair{DType::kFloat16, 0.02}}) {
    config.adapter_dtype = dtype;
    Driver narrow(config);
    const Rows got = read_all(narrow, golden.prompt, LoraId(0));
    EXPECT_NE(got, want);
    EXPECT_LT(distance(got, golden.logprobs), bound) << static_cast<int>(dtype);
    expect_rows(read_all(narrow, golden.prompt, LoraId(0), 3), got);
    EXPECT_EQ(narrow.shape().loras[0].bytes * 2, wide.shape().loras[0].bytes);
  }
}

TEST_F(LoraDevice, NumbersBeyondFp16AreRefusedByName) {
  const test::LoraFolders folders(*load_hf_config(model_path("llama2")));
  ModelConfig config =
      model_with("llama2", {folders.write("big", 2, 1, {LoraPart::kO}, /*size=*/1e6F)});
  config.adapter_dtype = DType::kBFloat16;
  EXPECT_TRUE(load(config).ok());
  config.adapter_dtype = DType::kFloat16;
  const absl::Status status = load(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::StartsWith("models[llama2].loras[big]: "),
                             HasSubstr("model.layers.0.self_attn.o_proj.lora_A.weight")));
}

// Only the layers that are loaded have additions.
TEST_F(LoraDevice, ALayerRangeTakesItsPart) {
  const std::vector<ExtraConfig> loras = random_loras(folders_, 1);
  Driver whole(model_with("llama2", loras));
  ModelConfig config = model_with("llama2", loras);
  config.layers = 2;
  Driver part(config);
  EXPECT_LT(part.shape().loras[0].bytes, whole.shape().loras[0].bytes);
  Sequence s = whole.sequence();
  s.lora = LoraId(0);
  Pass pass = chain_pass(whole.layers(), tokens_);
  Read read = all_logprobs(all_rows(tokens_.size()), whole.shape().vocab_size);
  read.at = 2;
  pass.reading(read);
  EXPECT_EQ(read_all(part, tokens_, LoraId(0)), logprobs(whole.run(s, pass)));
}

TEST_F(LoraDevice, UnknownAdaptersFailTheirWorkAlone) {
  Driver driver(model_with("llama2", random_loras(folders_, 2)));
  Pass pass = chain_pass(driver.layers(), tokens_);
  pass.reading(all_logprobs({0}, 1));
  Sequence unknown = driver.sequence(), known = driver.sequence();
  unknown.lora = LoraId(2);
  known.lora = LoraId(1);
  const std::vector<Driver::Item> items{{&unknown, &pass}, {&known, &pass}};
  const std::vector<WorkResult> results = driver.run(items);
  EXPECT_EQ(results[0].status.message(),
            "lora: 2; allowed: LoRA adapters of the model that are loaded");
  EXPECT_TRUE(results[1].status.ok()) << results[1].status;
}

TEST_F(LoraDevice, ErrorsNameTheAdapter) {
  ModelConfig config = model_with("llama2", {golden_lora("qwen2")});
  EXPECT_THAT(std::string(load(config).message()),
              testing::AllOf(testing::StartsWith("models[llama2].loras[tuned]: "),
                             HasSubstr("adapter_model.safetensors: tensor ")));
  config.loras[0].path = "/nowhere";
  EXPECT_EQ(load(config).code(), absl::StatusCode::kNotFound);
  config = model_with("t5", {golden_lora("qwen2")});
  const absl::Status encoder = load(config);
  EXPECT_EQ(encoder.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(encoder.message()),
              HasSubstr("base model: T5ForConditionalGeneration; allowed: decoders"));
}

// Greedy decoding of four sequences with adapters 0, none, 1 and 2, in an order that changes with
// each step; in between, of the one without an adapter alone. Steps are captured once and replayed.
std::vector<std::vector<Token>> decoded_with_loras(Driver& d, int steps) {
  const std::vector<LoraId> loras{LoraId(0), LoraId(), LoraId(1), LoraId(2)};
  std::vector<Sequence> s;
  std::vector<std::vector<Token>> said;
  const auto greedy = [&](Pass& pass) {
    Read read;
    read.rows = {0};
    read.draw = true;
    pass.reading(read);
  };
  for (size_t i = 0; i < loras.size(); ++i) {
    s.push_back(d.sequence());
    s.back().lora = loras[i];
    said.push_back(random_tokens(1, d.shape().vocab_size, i + 90));
  }
  const auto step = [&](const std::vector<size_t>& order) {
    std::vector<Pass> passes;
    std::vector<Driver::Item> items;
    passes.reserve(order.size());
    for (const size_t i : order) {
      passes.push_back(chain_pass(d.layers(), std::span(said[i]).last(1)));
      greedy(passes.back());
      items.push_back({&s[i], &passes.back()});
    }
    const std::vector<WorkResult> results = d.run(items);
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_TRUE(results[i].status.ok()) << results[i].status;
      if (results[i].status.ok()) said[order[i]].push_back(results[i].readout.row[0].token);
    }
  };
  for (int i = 0; i < steps; ++i) {
    std::vector<size_t> order{0, 1, 2, 3};
    std::rotate(order.begin(), order.begin() + i % 4, order.end());
    step(order);
    if (i % 3 == 2) step({1});
    if (i % 3 == 0) step({0});
  }
  return said;
}

class LoraSteps : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "LibTorch's operators on CPUs";
  }
  std::vector<std::vector<Token>> replayed(LazyDevices& devices, GraphCounts* counts = nullptr) {
    const auto shared = std::make_shared<TorchShared>(devices.make_queue());
    Driver d(config_, kSize, shared, 0, CpuKernels::kAten);
    std::vector<std::vector<Token>> said = decoded_with_loras(d, kSteps);
    if (counts != nullptr) *counts = d.graph_counts();
    return said;
  }

  static constexpr PoolSize kSize{.page_rows = 4, .pages = 40, .frontier_pages = 1};
  static constexpr int kSteps = 12;
  const test::LoraFolders folders_{*load_hf_config(model_path("llama2"))};
  const ModelConfig config_ = model_with("llama2", random_loras(folders_, 3));
};

// As on CUDA: the rows' adapters are staged with the other numbers of a step, and steps are
// replayed. The tokens are those of the CPU's own kernels.
TEST_F(LoraSteps, ReplaysGiveTheTokensOfTheCpu) {
  Driver own(config_, kSize);
  const std::vector<std::vector<Token>> want = decoded_with_loras(own, kSteps);
  EXPECT_NE(want[0], want[1]);
  for (uint64_t seed = 0; seed < 2; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed == 1});
    GraphCounts counts;
    EXPECT_EQ(replayed(devices, &counts), want);
    EXPECT_EQ(devices.fault(), "");
    EXPECT_EQ(counts.refused, 0);
    EXPECT_EQ(counts.captured, 3) << "of four rows, of one with an adapter, of one without";
    EXPECT_GE(counts.replayed, 12);
  }
}

// One copy to the device, one replay, one copy back, as without adapters.
TEST_F(LoraSteps, AStepIsOneCopyOneReplayOneCopy) {
  LazyDevices devices({});
  Driver d(config_, kSize, std::make_shared<TorchShared>(devices.make_queue()), 0,
           CpuKernels::kAten);
  Sequence s = d.sequence();
  s.lora = LoraId(1);
  Pass pass = chain_pass(d.layers(), std::vector<Token>{3});
  Read read;
  read.rows = {0};
  read.draw = true;
  pass.reading(read);
  for (int i = 0; i < 5; ++i) d.run(s, pass);
  const auto before = devices.calls();
  d.run(s, pass);
  std::vector<int> made;
  for (size_t i = 0; i < before.size(); ++i) made.push_back(devices.calls()[i] - before[i]);
  EXPECT_EQ(made, (std::vector<int>{2, 0, 0, 0, 1, 2, 0, 1}));
}

#ifdef TANDEM_MUTATIONS
TEST_F(LoraSteps, MutationsAreFound) {
  Driver own(config_, kSize);
  const std::vector<std::vector<Token>> want = decoded_with_loras(own, kSteps);
  graph_mutation = GraphMutation::kLorasOfTheFirst;
  LazyDevices devices({});
  EXPECT_NE(replayed(devices), want);
  graph_mutation = GraphMutation::kNone;
}
#endif

}  // namespace
}  // namespace tandem
