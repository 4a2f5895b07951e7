#include "engine/backend/torch/weights/decoder_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using test::FileTensor;
using test::safetensors_of;
using test::TempDir;
using testing::HasSubstr;

DecoderConfig tiny() {
  DecoderConfig config;
  config.model_type = "llama";
  config.vocab_size = 7;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  return config;
}

std::vector<FileTensor> file_of(const std::vector<TensorSpec>& specs) {
  std::vector<FileTensor> tensors;
  for (const TensorSpec& spec : specs) tensors.push_back({spec.name, "F32", spec.shape});
  return tensors;
}

absl::StatusOr<DecoderLayout> check(const DecoderConfig& config, const std::string& file) {
  const TempDir dir;
  dir.write("model.safetensors", file);
  const auto checkpoint = Checkpoint::open(dir.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return check_decoder(config, *checkpoint);
}

std::string message(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(DecoderLayout, NamesAndShapes) {
  DecoderConfig config = tiny();
  EXPECT_EQ(decoder_tensors(config, false).size(), 3u + 2 * 9);
  EXPECT_EQ(decoder_tensors(config, true).size(), 2u + 2 * 9);
  config.qkv_bias = true;
  EXPECT_EQ(decoder_tensors(config, true).size(), 2u + 2 * 12);
  config.o_bias = config.mlp_bias = true;
  EXPECT_EQ(decoder_tensors(config, true).size(), 2u + 2 * 16);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& s : decoder_tensors(config, false)) shapes[s.name] = s.shape;
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("lm_head.weight"), (Shape{7, 4}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.weight"), (Shape{8, 4}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.k_proj.weight"), (Shape{4, 4}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.v_proj.bias"), (Shape{4}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.o_proj.weight"), (Shape{4, 8}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.gate_proj.weight"), (Shape{6, 4}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.weight"), (Shape{4, 6}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.bias"), (Shape{4}));
}

TEST(DecoderLayout, CountsParameters) {
  const DecoderConfig config = tiny();
  const auto layout = check(config, safetensors_of(file_of(decoder_tensors(config, false))));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_FALSE(layout->tied);
  EXPECT_EQ(layout->parameters, 2 * 28 + 4 + 2 * (4 + 32 + 16 + 16 + 32 + 4 + 3 * 24));
}

TEST(DecoderLayout, TiedHeads) {
  DecoderConfig config = tiny();
  config.tie_word_embeddings = true;
  std::vector<FileTensor> tensors = file_of(decoder_tensors(config, true));
  const auto without = check(config, safetensors_of(tensors));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_TRUE(without->tied);
  EXPECT_EQ(without->parameters, 28 + 4 + 2 * (4 + 32 + 16 + 16 + 32 + 4 + 3 * 24));

  tensors.push_back({"lm_head.weight", "F32", {7, 4}});
  const std::string same = safetensors_of(tensors);
  EXPECT_TRUE(check(config, same)->tied);
  std::string different = same;
  different.back() = 1;  // the last byte of lm_head.weight
  EXPECT_FALSE(check(config, different)->tied);

  config.tie_word_embeddings = false;
  tensors.pop_back();
  EXPECT_THAT(message(check(config, safetensors_of(tensors)).status()),
              HasSubstr("missing tensors: \"lm_head.weight\" [7, 4]"));
}

TEST(DecoderLayout, UnexpectedTensors) {
  const DecoderConfig config = tiny();
  std::vector<FileTensor> tensors = file_of(decoder_tensors(config, false));
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}});
  EXPECT_TRUE(check(config, safetensors_of(tensors)).ok());
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {8}});
  EXPECT_THAT(message(check(config, safetensors_of(tensors)).status()),
              HasSubstr("unexpected tensors: \"model.layers.0.self_attn.q_proj.bias\" [8]"));
}

TEST(DecoderLayout, OptionalPrefix) {
  DecoderConfig config = tiny();
  config.names.embedding = "wte";
  config.names.layer = "h.";
  config.names.final_norm = "ln_f";
  config.names.prefix = "transformer.";
  config.names.ignored = {".attn.bias"};
  config.tie_word_embeddings = true;
  std::vector<FileTensor> tensors = file_of(decoder_tensors(config, true));
  tensors.push_back({"h.0.attn.bias", "F32", {1}});
  const auto without = check(config, safetensors_of(tensors));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->names.layer, "h.");
  for (FileTensor& t : tensors) t.name = "transformer." + t.name;
  const auto with = check(config, safetensors_of(tensors));
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->names.layer, "transformer.h.");
  EXPECT_EQ(with->names.embedding, "transformer.wte");
}

TEST(DecoderLayout, KindsOfLayers) {
  DecoderConfig config = tiny();
  config.gated = false;
  config.norm = NormKind::kLayer;
  config.names.qkv = {"qkv"};
  config.names.up = {"fc"};
  config.names.q_norm = "q_norm";
  config.names.transposed = true;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& s : decoder_tensors(config, false)) shapes[s.name] = s.shape;
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("model.layers.1.qkv.weight"), (Shape{4, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.fc.weight"), (Shape{4, 6}));
  EXPECT_EQ(shapes.at("model.layers.1.q_norm.weight"), (Shape{4}));
  EXPECT_EQ(shapes.at("model.layers.1.input_layernorm.bias"), (Shape{4}));
  EXPECT_EQ(shapes.at("model.norm.bias"), (Shape{4}));
  EXPECT_EQ(shapes.at("lm_head.weight"), (Shape{7, 4}));
}

// What the encoder and decoder of T5 share, and what old files contain in addition.
TEST(DecoderLayout, EncoderAndDecoder) {
  const auto config = parse_hf_config(
      R"({"model_type":"t5","vocab_size":7,"d_model":4,"d_kv":2,"d_ff":6,"num_layers":2,)"
      R"("num_decoder_layers":1,"num_heads":2})",
      "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  std::vector<FileTensor> tensors = file_of(decoder_tensors(*config, true));
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const FileTensor& t : tensors) shapes[t.name] = t.shape;
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.size(), 1u + 2 * 8 + 13 + 2 * 2);
  EXPECT_EQ(shapes.at("encoder.block.1.layer.1.DenseReluDense.wi.weight"), (Shape{6, 4}));
  EXPECT_EQ(shapes.at("decoder.block.0.layer.1.EncDecAttention.k.weight"), (Shape{4, 4}));
  EXPECT_EQ(shapes.at("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
            (Shape{32, 2}));
  EXPECT_TRUE(check(*config, safetensors_of(tensors)).ok());

  const char* const bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
  tensors.push_back({bias, "F32", {32, 2}});
  tensors.push_back({"encoder.embed_tokens.weight", "F32", {7, 4}});
  const std::string same = safetensors_of(tensors);
  EXPECT_TRUE(check(*config, same).ok());
  std::string different = same;
  different.back() = 1;  // the last byte of encoder.embed_tokens.weight
  EXPECT_THAT(message(check(*config, different).status()),
              HasSubstr("unexpected tensors: \"encoder.embed_tokens.weight\""));
  tensors.erase(tensors.begin() + 5);
  EXPECT_THAT(message(check(*config, safetensors_of(tensors)).status()),
              HasSubstr("missing tensors: "));
}

TEST(DecoderLayout, RowsOfHeadGroups) {
  const HeadGroups groups{.groups = 2, .queries = 3, .head_dim = 2};
  std::vector<int64_t> heads;
  for (int64_t head = 0; head < 10; ++head) {
    heads.push_back(groups.stored_row(2 * head) / 2);
    EXPECT_EQ(groups.stored_row(2 * head + 1), groups.stored_row(2 * head) + 1);
  }
  // The file's heads are q q q k v q q q k v.
  EXPECT_THAT(heads, testing::ElementsAre(0, 1, 2, 5, 6, 7, 3, 8, 4, 9));
  EXPECT_EQ(HeadGroups{}.stored_row(17), 17);
}

TEST(DecoderLayout, MisshapenAndQuantizedTensors) {
  const DecoderConfig config = tiny();
  std::vector<FileTensor> tensors = file_of(decoder_tensors(config, false));
  tensors[0].shape = {8, 4};
  tensors[2].dtype = "I64";
  EXPECT_THAT(message(check(config, safetensors_of(tensors)).status()),
              HasSubstr("tensors that do not fit: \"model.embed_tokens.weight\" (shape [8, 4], "
                        "expected [7, 4]), \"model.layers.0.self_attn.q_proj.weight\" (dtype I64"));
}

// The golden models exercise config, files and layout together.
TEST(DecoderLayout, GoldenModels) {
  const std::vector<std::pair<std::string, SafeDType>> models = {
      {"llama2", SafeDType::kF32},
      {"llama3", SafeDType::kBF16},
      {"qwen2", SafeDType::kF16},
      {"mistral", SafeDType::kF32},
      {"qwen3", SafeDType::kBF16},
      {"gemma3", SafeDType::kBF16},
      {"gpt2", SafeDType::kF16},
      {"phi3", SafeDType::kF32},
      {"falcon", SafeDType::kBF16},
      {"falcon_groups", SafeDType::kF32},
      {"falcon_one_norm", SafeDType::kF16},
      {"falcon_serial", SafeDType::kF16},
      {"yarn", SafeDType::kF16},
      {"longrope", SafeDType::kF16},
      {"starcoder2", SafeDType::kF32},
      {"t5", SafeDType::kF32},
      {"t5_v1_1", SafeDType::kBF16},
      {"mt5", SafeDType::kF16}};
  for (const auto& [name, dtype] : models) {
    const std::string path = std::string(TANDEM_SOURCE_DIR) + "/tests/data/golden_models/" + name;
    const auto config = load_hf_config(path);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto layout = check_decoder(*config, *checkpoint);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(config->dtype, dtype);
    EXPECT_EQ(layout->tied, config->tie_word_embeddings);
    EXPECT_EQ(layout->parameters, checkpoint->total_elements());
    for (const std::string& tensor : checkpoint->names()) {
      EXPECT_EQ(checkpoint->find(tensor)->dtype, dtype);
    }

    const auto file = MappedFile::open(path + "/golden.safetensors");
    ASSERT_TRUE(file.ok());
    const auto golden = parse_safetensors(file->bytes(), name);
    ASSERT_TRUE(golden.ok()) << golden.status();
    EXPECT_EQ(config->rotary, golden->tensors.contains("rope_inverse_frequencies"));
    if (!config->rotary) continue;
    const TensorView& view = golden->tensors.at("rope_inverse_frequencies");
    std::vector<float> expected(static_cast<size_t>(view.elements()));
    ASSERT_TRUE(to_float(view, 0, expected).ok());
    const std::vector<float> got = rope_inverse_frequencies(config->rope, config->head_dim);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], expected[i]) << name << i;
    std::vector<float> factor{1};
    if (golden->tensors.contains("rope_attention_factor")) {
      ASSERT_TRUE(to_float(golden->tensors.at("rope_attention_factor"), 0, factor).ok());
    }
    EXPECT_FLOAT_EQ(static_cast<float>(config->rope.attention_factor), factor[0]) << name;
  }
}

}  // namespace
}  // namespace tandem
