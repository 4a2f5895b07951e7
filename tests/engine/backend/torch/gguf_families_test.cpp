// Golden models as GGUF files, written the way ggml's converter writes them: what Transformers
// computes with the originals must come from these.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using test::GgufBuilder;

struct Matrix {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

Matrix read(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView& view = *checkpoint.find(name);
  Matrix m{view.shape, std::vector<float>(static_cast<size_t>(view.elements()))};
  EXPECT_TRUE(to_float(view, 0, m.values).ok());
  return m;
}

Matrix transposed(const Matrix& m) {
  Matrix t{{m.shape[1], m.shape[0]}, std::vector<float>(m.values.size())};
  for (int64_t r = 0; r < m.shape[0]; ++r) {
    for (int64_t c = 0; c < m.shape[1]; ++c) {
      t.values[static_cast<size_t>(c * m.shape[0] + r)] =
          m.values[static_cast<size_t>(r * m.shape[1] + c)];
    }
  }
  return t;
}

// Falcon's rows, of which each group has its queries, its key and its value: first all queries,
// then all keys, then all values.
Matrix ungrouped(const Matrix& m, int groups, int queries, int head_dim) {
  Matrix out{m.shape, {}};
  const auto width = static_cast<int64_t>(m.values.size()) / m.shape[0];
  const auto take = [&](int64_t head) {
    const auto begin = m.values.begin() + head * head_dim * width;
    out.values.insert(out.values.end(), begin, begin + head_dim * width);
  };
  for (int g = 0; g < groups; ++g) {
    for (int q = 0; q < queries; ++q) take(int64_t{g} * (queries + 2) + q);
  }
  for (const int part : {queries, queries + 1}) {
    for (int g = 0; g < groups; ++g) take(int64_t{g} * (queries + 2) + part);
  }
  return out;
}

struct Family {
  const char* golden;
  const char* arch;
  std::vector<std::pair<std::string, std::string>> names;  // Transformers' to ggml's
};

const Family kGpt2{"gpt2",
                   "gpt2",
                   {{"transformer.", ""},
                    {"wte", "token_embd"},
                    {"wpe", "position_embd"},
                    {"ln_f", "output_norm"},
                    {"h.", "blk."},
                    {"ln_1", "attn_norm"},
                    {"ln_2", "ffn_norm"},
                    {"attn.c_attn", "attn_qkv"},
                    {"attn.c_proj", "attn_output"},
                    {"mlp.c_fc", "ffn_up"},
                    {"mlp.c_proj", "ffn_down"}}};
const std::vector<std::pair<std::string, std::string>> kPhi3Names{
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"model.layers.", "blk."},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"}};
const std::vector<std::pair<std::string, std::string>> kFalconNames{
    {"transformer.", ""},
    {"word_embeddings", "token_embd"},
    {"ln_f", "output_norm"},
    {"lm_head", "output"},
    {"h.", "blk."},
    {"input_layernorm", "attn_norm"},
    {"ln_mlp", "attn_norm"},
    {"ln_attn", "attn_norm_2"},
    {"self_attention.query_key_value", "attn_qkv"},
    {"self_attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"}};

// T5's halves have names of their own.
const std::vector<std::pair<std::string, std::string>> kT5EncoderNames{
    {"encoder.block.", "enc.blk."},
    {"encoder.final_layer_norm", "enc.output_norm"},
    {"layer.0.layer_norm", "attn_norm"},
    {"layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"},
    {"layer.0.SelfAttention.", "attn_"},
    {"layer.1.layer_norm", "ffn_norm"},
    {"layer.1.DenseReluDense.wi_0", "ffn_gate"},
    {"layer.1.DenseReluDense.wi_1", "ffn_up"},
    {"layer.1.DenseReluDense.wi", "ffn_up"},
    {"layer.1.DenseReluDense.wo", "ffn_down"}};
const std::vector<std::pair<std::string, std::string>> kT5DecoderNames{
    {"shared", "token_embd"},
    {"lm_head", "output"},
    {"decoder.block.", "dec.blk."},
    {"decoder.final_layer_norm", "dec.output_norm"},
    {"layer.0.layer_norm", "attn_norm"},
    {"layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"},
    {"layer.0.SelfAttention.", "attn_"},
    {"layer.1.layer_norm", "cross_attn_norm"},
    {"layer.1.EncDecAttention.", "cross_attn_"},
    {"layer.2.layer_norm", "ffn_norm"},
    {"layer.2.DenseReluDense.wi_0", "ffn_gate"},
    {"layer.2.DenseReluDense.wi_1", "ffn_up"},
    {"layer.2.DenseReluDense.wi", "ffn_up"},
    {"layer.2.DenseReluDense.wo", "ffn_down"}};

void set_sizes(GgufBuilder& b, const std::string& arch, const DecoderConfig& c) {
  const auto set = [&](const char* key, int value) {
    b.set(arch + "." + key, static_cast<uint32_t>(value));
  };
  b.set("general.architecture", arch);
  set("block_count", c.layers);
  set("context_length", c.max_positions);
  set("embedding_length", c.hidden_size);
  set("feed_forward_length", c.intermediate_size);
  set("attention.head_count", c.heads);
  set("attention.head_count_kv", c.kv_heads);
  b.set(arch + (c.norm == NormKind::kRms ? ".attention.layer_norm_rms_epsilon"
                                         : ".attention.layer_norm_epsilon"),
        static_cast<float>(c.norm_eps));
  if (c.rotary) set("rope.dimension_count", c.head_dim);
  if (c.rotary) b.set(arch + ".rope.freq_base", static_cast<float>(c.rope.theta));
  if (c.window > 0) set("attention.sliding_window", c.window);
  std::vector<std::string> tokens;
  for (int i = 0; i < c.vocab_size; ++i) tokens.push_back(absl::StrCat("t", i));
  b.set("tokenizer.ggml.tokens", tokens);
  b.set("tokenizer.ggml.token_type",
        std::vector<int32_t>(static_cast<size_t>(c.vocab_size), int32_t{1}));
  b.set("tokenizer.ggml.eos_token_id", 2u);
}

std::string file_of(const Family& family, const std::string& directory) {
  const DecoderConfig c = *load_hf_config(directory);
  const Checkpoint checkpoint = *Checkpoint::open(directory);
  GgufBuilder b;
  set_sizes(b, family.arch, c);
  if (c.rope.kind == RopeConfig::kLongRope) {
    b.set("phi3.context_length", 1024u);
    b.set("phi3.rope.scaling.original_context_length",
          static_cast<uint32_t>(c.rope.original_max_positions));
    b.set("phi3.rope.scaling.attn_factor", static_cast<float>(c.rope.attention_factor));
    const auto n = static_cast<int64_t>(c.rope.stretch.size());
    b.tensor("rope_factors_short.weight", {n}, c.rope.stretch);
    b.tensor("rope_factors_long.weight", {n}, std::vector<float>(c.rope.stretch.size(), 4.0f));
  }
  for (const std::string& name : checkpoint.names()) {
    Matrix m = read(checkpoint, name);
    const std::string ggml = absl::StrReplaceAll(name, family.names);
    const bool matrix = m.shape.size() == 2 && absl::StartsWith(ggml, "blk.");
    if (c.names.transposed && matrix) m = transposed(m);
    if (c.names.grouped && absl::StrContains(name, "query_key_value")) {
      m = ungrouped(m, c.kv_heads, c.heads / c.kv_heads, c.head_dim);
    }
    b.tensor(ggml, m.shape, m.values);
  }
  return b.file();
}

std::string t5_file_of(const std::string& directory) {
  const DecoderConfig c = *load_hf_config(directory);
  const Checkpoint checkpoint = *Checkpoint::open(directory);
  GgufBuilder b;
  set_sizes(b, "t5", c);
  b.set("t5.block_count", static_cast<uint32_t>(c.encoder->layers));
  b.set("t5.decoder_block_count", static_cast<uint32_t>(c.layers));
  b.set("t5.attention.key_length", static_cast<uint32_t>(c.head_dim));
  b.set("t5.attention.value_length", static_cast<uint32_t>(c.head_dim));
  b.set("t5.attention.relative_buckets_count", static_cast<uint32_t>(c.distance_buckets));
  b.set("t5.decoder_start_token_id", static_cast<uint32_t>(c.start_token));
  for (const std::string& name : checkpoint.names()) {
    const bool encoder = absl::StartsWith(name, "encoder.");
    const Matrix m = read(checkpoint, name);
    b.tensor(absl::StrReplaceAll(name, encoder ? kT5EncoderNames : kT5DecoderNames), m.shape,
             m.values);
  }
  return b.file();
}

class GgufFamilies : public testing::TestWithParam<Family> {};

TEST_P(GgufFamilies, LogitsAreTheOriginals) {
  const Golden golden(GetParam().golden);
  const test::TempDir dir;
  Driver driver(dir.write("model.gguf", file_of(GetParam(), golden.directory())));
  const int vocab = driver.shape().vocab_size;
  int compared = 0;
  for (int i = 0; i < golden.prompts(); ++i) {
    const std::string tensor = absl::StrCat("prompt_logits.", i);
    if (!golden.has(tensor)) continue;
    const std::vector<Token> prompt = golden.prompt(i);
    Sequence s = driver.sequence();
    Pass pass = chain_pass(driver.layers(), prompt);
    RowList rows;
    for (int r = 0; r < static_cast<int>(prompt.size()); ++r) rows.push_back(r);
    pass.reading(all_logprobs(rows, vocab));
    const auto got = logprobs(driver.run(s, pass));
    const auto want = golden.rows(tensor);
    for (size_t r = 0; r < want.size(); ++r) {
      const std::vector<double> row = log_softmax(want[r]);
      for (size_t t = 0; t < row.size(); ++t, ++compared) ASSERT_NEAR(got[r][t], row[t], 1e-4);
    }
    driver.release(s);
  }
  EXPECT_GT(compared, 1000);
}

// Log-probabilities of the golden greedy tokens behind the source of prompt `i`.
std::vector<std::vector<float>> steps_of(Driver& driver, const Golden& golden, int i) {
  Sequence memory = driver.memory();
  const Pass source = source_pass(driver.layers(), golden.prompt(i));
  const Driver::Item encodes{.sequence = &memory, .pass = &source};
  EXPECT_TRUE(driver.run({&encodes, 1})[0].status.ok());
  std::vector<Token> tokens = golden.greedy(i);
  tokens.insert(tokens.begin(), 0);
  tokens.pop_back();
  Pass pass = chain_pass(driver.layers(), tokens);
  RowList rows;
  for (int r = 0; r < static_cast<int>(tokens.size()); ++r) rows.push_back(r);
  pass.reading(all_logprobs(rows, driver.shape().vocab_size));
  Sequence s = driver.sequence();
  const Driver::Item item{.sequence = &s, .pass = &pass, .memory = &memory};
  const std::vector<WorkResult> results = driver.run({&item, 1});
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  auto got = logprobs(results[0].readout);
  driver.release(s);
  driver.release(memory);
  return got;
}

class GgufEncoders : public testing::TestWithParam<const char*> {};

TEST_P(GgufEncoders, LogitsAreTheOriginals) {
  const Golden golden(GetParam());
  const test::TempDir dir;
  Driver driver(dir.write("model.gguf", t5_file_of(golden.directory())));
  int compared = 0;
  for (int i = 0; i < golden.prompts(); ++i) {
    const std::string tensor = absl::StrCat("step_logits.", i);
    if (!golden.has(tensor)) continue;
    const auto got = steps_of(driver, golden, i);
    const auto want = golden.rows(tensor);
    ASSERT_EQ(got.size(), want.size());
    for (size_t r = 0; r < want.size(); ++r) {
      const std::vector<double> row = log_softmax(want[r]);
      for (size_t t = 0; t < row.size(); ++t, ++compared) ASSERT_NEAR(got[r][t], row[t], 1e-4);
    }
  }
  EXPECT_GT(compared, 1000);
}

INSTANTIATE_TEST_SUITE_P(Models, GgufEncoders, testing::Values("t5_v1_1", "mt5"),
                         [](const auto& info) { return std::string(info.param); });

// The first T5: no gate, and the head is the embedding. Distances from 128 on are alike in every
// file of this kind, so what it is held against is the golden model with that in its config.
TEST(GgufT5, TheFirstOnesAreTheOriginals) {
  const Golden golden("t5");
  const test::TempDir original, dir;
  std::string config = *read_small_file(golden.directory() + "/config.json", 1 << 20);
  const std::string distance = "\"relative_attention_max_distance\": ";
  ASSERT_TRUE(absl::StrContains(config, distance + "40"));
  config = absl::StrReplaceAll(config, {{distance + "40", distance + "128"}});
  original.write("config.json", config);
  std::filesystem::copy(golden.directory() + "/model.safetensors",
                        original.path() + "/model.safetensors");
  Driver want(original.path());
  Driver got(dir.write("model.gguf", t5_file_of(golden.directory())));
  for (const int i : {0, 5, 14}) EXPECT_EQ(steps_of(got, golden, i), steps_of(want, golden, i));
}

INSTANTIATE_TEST_SUITE_P(Models, GgufFamilies,
                         testing::Values(kGpt2, Family{"phi3", "phi3", kPhi3Names},
                                         Family{"longrope", "phi3", kPhi3Names},
                                         Family{"falcon", "falcon", kFalconNames},
                                         Family{"falcon_groups", "falcon", kFalconNames},
                                         Family{"falcon_one_norm", "falcon", kFalconNames}),
                         [](const auto& info) { return std::string(info.param.golden); });

}  // namespace
}  // namespace tandem
