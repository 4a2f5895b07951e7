#include "engine/backend/torch/weights/gguf/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/convert.h"
#include "engine/backend/torch/weights/hf/generation_config.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using nlohmann::json;
using test::GgufBuilder;
using test::tiny_gguf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Parsed {
  explicit Parsed(const GgufBuilder& b) : file(b.file()) {
    auto parsed = parse_gguf(std::as_bytes(std::span(file)), "f");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (parsed.ok()) gguf = *std::move(parsed);
  }
  std::string file;
  Gguf gguf;
};

json config_of(const GgufBuilder& b) {
  const Parsed p(b);
  const absl::StatusOr<std::string> text = gguf_config_json(p.gguf, "f");
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? json::parse(*text) : json();
}
std::string config_error(const GgufBuilder& b) {
  return std::string(gguf_config_json(Parsed(b).gguf, "f").status().message());
}

TEST(GgufConfig, Llama) {
  const test::TempDir dir;
  GgufBuilder b = tiny_gguf();
  b.set("llama.rope.freq_base", 5e5f).set("llama.rope.scaling.type", "linear");
  b.set("llama.rope.scaling.factor", 2.0f);
  const auto config = load_hf_config(dir.write("m.gguf", b.file()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_type, "llama");
  EXPECT_EQ(config->vocab_size, 8);
  EXPECT_EQ(config->hidden_size, 4);
  EXPECT_EQ(config->heads, 2);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->head_dim, 2);
  EXPECT_EQ(config->max_positions, 64);
  EXPECT_EQ(config->rope.theta, 5e5);
  EXPECT_EQ(config->rope.kind, RopeConfig::kLinear);
  EXPECT_EQ(config->rope.factor, 2);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(0, 5));  // from the key, and by spelling
}

TEST(GgufConfig, OtherArchitectures) {
  const json qwen2 = config_of(tiny_gguf("qwen2"));
  EXPECT_EQ(qwen2["model_type"], "qwen2");
  const json qwen3 = config_of(tiny_gguf("qwen3").tensor("output.weight", {8, 4}));
  EXPECT_EQ(qwen3["architectures"], json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(qwen3["head_dim"], 4);
  EXPECT_EQ(qwen3["tie_word_embeddings"], false);
  const json gemma = config_of(tiny_gguf("gemma3").set("gemma3.attention.sliding_window", 512u));
  EXPECT_EQ(gemma["model_type"], "gemma3_text");
  EXPECT_EQ(gemma["sliding_window"], 512);
  EXPECT_EQ(gemma["sliding_window_pattern"], 6);
  EXPECT_EQ(gemma["rope_local_base_freq"], 10000.0);
  EXPECT_EQ(gemma["query_pre_attn_scalar"], 4);
}

TEST(GgufConfig, EmbeddingGemma) {
  const test::TempDir dir;
  GgufBuilder b = tiny_gguf("gemma-embedding");
  b.set("gemma-embedding.attention.sliding_window", 512u);
  const std::string path = dir.write("m.gguf", b.file());
  const auto config = load_hf_config(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_type, "gemma3_text");
  EXPECT_TRUE(config->bidirectional);
  EXPECT_TRUE(config->headless);
  EXPECT_EQ(config->window, 257) << "256 rows on each side, and the row itself";
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_NE(checkpoint->find("model.layers.0.pre_feedforward_layernorm.weight"), nullptr);
  for (const std::string& name : checkpoint->names()) EXPECT_THAT(name, Not(HasSubstr("dense")));
  EXPECT_EQ(config_of(tiny_gguf("gemma3"))["use_bidirectional_attention"], false);
}

TEST(GgufDense, OnlyOfEmbeddingGemma) {
  for (const char* arch : {"gemma3", "qwen3"}) {
    const Parsed p(tiny_gguf(arch).tensor("dense_2.weight", {6, 4}));
    EXPECT_TRUE(gguf_dense(p.gguf, "f")->empty());
    EXPECT_THAT(std::string(gguf_tensors(p.gguf, "f").status().message()),
                HasSubstr("tensor \"dense_2.weight\" [6, 4]: belongs to no part"));
  }
  GgufBuilder b = tiny_gguf("gemma-embedding");
  std::erase_if(b.tensors, [](const auto& t) { return t.name.starts_with("dense"); });
  EXPECT_TRUE(gguf_dense(Parsed(b).gguf, "f")->empty());
  b.tensor("dense_2.weight", {2, 3}, {1, 2, 3, 4, 5, 6}).tensor("dense_3.weight", {1, 2}, {7, 8});
  const auto layers = gguf_dense(Parsed(b).gguf, "f");
  ASSERT_TRUE(layers.ok()) << layers.status();
  ASSERT_EQ(layers->size(), 2U);
  EXPECT_EQ(layers->at(0).in, 3);
  EXPECT_EQ(layers->at(0).out, 2);
  EXPECT_THAT(layers->at(0).weight, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(layers->at(1).weight, ElementsAre(7, 8));
  EXPECT_FALSE(layers->at(0).tanh);
}

TEST(GgufDense, Errors) {
  const auto error = [](const std::string& name, std::vector<int64_t> shape) {
    GgufBuilder b = tiny_gguf("gemma-embedding");
    std::erase_if(b.tensors, [&](const auto& t) { return t.name == name; });
    const Parsed p(b.tensor(name, std::move(shape)));
    return std::string(gguf_dense(p.gguf, "f").status().message());
  };
  EXPECT_EQ(error("dense_2.weight", {4}),
            "f: dense_2.weight: [4]; allowed: a matrix of widths up to 1048576");
  EXPECT_EQ(error("dense_2.weight", {1 << 21, 1}),
            "f: dense_2.weight: [2097152, 1]; allowed: a matrix of widths up to 1048576");
  EXPECT_EQ(error("dense_3.weight", {4, 5}),
            "f: dense_3.weight: inputs: 5; allowed: 6, the width before it");
}

// Rows of the tokens "a", "yes" and "no", width 4.
GgufBuilder reranker(const std::vector<float>& labels) {
  GgufBuilder b = tiny_gguf("qwen3");
  std::erase_if(b.tensors, [](const auto& t) { return t.name == "token_embd.weight"; });
  b.set("tokenizer.ggml.tokens",
        std::vector<std::string>{"a", "yes", "no", "b", "c", "d", "e", "f"});
  std::vector<float> rows(32);
  rows[4] = rows[9] = 1;
  rows[5] = 0.5f;
  b.tensor("token_embd.weight", {8, 4}, rows);
  return b.tensor("cls.output.weight", {2, 4}, labels);
}

TEST(GgufReranker, LabelsThatAreRowsOfTheEmbeddingAreLeftOut) {
  const Parsed p(reranker({1, 0.5f, 0, 0, 0, 0.9f, 0, 0.1f}));
  const auto tensors = gguf_tensors(p.gguf, "f");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), p.gguf.tensors.size() - 1);
}

TEST(GgufReranker, LabelsOfAnotherMatrixAreRefused) {
  const auto error = [](const GgufBuilder& b) {
    return std::string(gguf_tensors(Parsed(b).gguf, "f").status().message());
  };
  // The rows in the other order.
  EXPECT_THAT(error(reranker({0, 1, 0, 0, 1, 0.5f, 0, 0})),
              HasSubstr("f: cls.output.weight: cosine similarity to the embedding of \"yes\": "));
  EXPECT_THAT(error(reranker({0, 0, 0, 0, 0, 0, 0, 0})), HasSubstr("as the file has no output"));
  GgufBuilder b = reranker({1, 0.5f, 0, 0, 0, 1, 0, 0});
  b.tensors.back().shape = {1, 8};
  EXPECT_EQ(error(b), "f: cls.output.weight: [1, 8]; allowed: [2, 4]");
  b = reranker({1, 0.5f, 0, 0, 0, 1, 0, 0});
  b.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "yes", "b", "c", "d", "e", "f"});
  EXPECT_EQ(error(b), "f: cls.output.weight: token: \"no\"; allowed: tokens of the file");
  // Another architecture has no such tensor.
  EXPECT_THAT(error(tiny_gguf("llama").tensor("cls.output.weight", {2, 4})),
              HasSubstr("belongs to no part"));
}

TEST(GgufConfig, T5) {
  GgufBuilder b = tiny_gguf("t5");
  EXPECT_EQ(config_error(b),
            "f: t5.attention.relative_buckets_count: missing; allowed: integers from 4 to 65536");
  b.set("t5.attention.relative_buckets_count", 32u).set("t5.decoder_block_count", 3u);
  EXPECT_EQ(config_error(b), "f: t5.attention.head_count_kv: 1; allowed: 2, the number of heads");
  b.erase("t5.attention.head_count_kv");
  b.set("t5.decoder_start_token_id", 8u);
  EXPECT_EQ(config_error(b), "f: t5.decoder_start_token_id: 8; allowed: integers from 0 to 7");
  b.set("t5.decoder_start_token_id", 1u);
  json config = config_of(b);
  EXPECT_EQ(config["num_layers"], 1);
  EXPECT_EQ(config["num_decoder_layers"], 3);
  EXPECT_EQ(config["decoder_start_token_id"], 1);
  EXPECT_EQ(config["feed_forward_proj"], "relu");
  EXPECT_EQ(config["tie_word_embeddings"], true);
  b.tensor("dec.blk.0.ffn_gate.weight", {8, 4}).tensor("output.weight", {8, 4});
  config = config_of(b);
  EXPECT_EQ(config["feed_forward_proj"], "gated-gelu");
  EXPECT_EQ(config["tie_word_embeddings"], false);
}

TEST(GgufConfig, Llama3FrequenciesAsDivisors) {
  const auto with = [](float factor, float first) {
    GgufBuilder b = tiny_gguf();
    b.set("llama.attention.key_length", 64u).set("llama.attention.value_length", 64u);
    b.set("llama.rope.freq_base", 5e5f);
    RopeConfig rope{.theta = 5e5};
    const auto plain = rope_inverse_frequencies(rope, 64);
    rope = {RopeConfig::kLlama3, 5e5, factor, 1, 4, 8192};
    const auto scaled = rope_inverse_frequencies(rope, 64);
    std::vector<float> divisors(32);
    for (size_t i = 0; i < 32; ++i) divisors[i] = plain[i] / scaled[i];
    divisors[0] *= first;
    return b.tensor("rope_freqs.weight", {32}, divisors);
  };
  const json rope = config_of(with(32, 1))["rope_scaling"];
  EXPECT_EQ(rope["rope_type"], "llama3");
  EXPECT_EQ(rope["factor"], 32.0);
  EXPECT_THAT(config_error(with(8, 2)), HasSubstr("rope_freqs.weight[0]: 2; allowed: 1, as"));
}

TEST(GgufConfig, Errors) {
  const struct {
    GgufBuilder file;
    std::string message;
  } cases[] = {
      {tiny_gguf("mamba"),
       "f: general.architecture: \"mamba\"; allowed: llama, qwen2, qwen3, gemma3, "
       "gemma-embedding, phi3, gpt2, falcon, t5"},
      {tiny_gguf().erase("llama.block_count"),
       "f: llama.block_count: missing; allowed: integers from 1 to 1000"},
      {tiny_gguf().set("llama.block_count", 0u),
       "f: llama.block_count: 0; allowed: integers from 1 to 1000"},
      {tiny_gguf().set("llama.attention.head_count", std::vector<int32_t>{2}),
       "f: llama.attention.head_count: an array of i32; allowed: integers from 1 to 1024"},
      {tiny_gguf().set("llama.attention.head_count", 3u),
       "f: llama.attention.head_count: 3; allowed: divisors of embedding_length, which is 4"},
      {tiny_gguf().set("llama.attention.value_length", 4u),
       "f: llama.attention.value_length: 4; allowed: 2, the length of keys"},
      {tiny_gguf().set("llama.rope.dimension_count", 1u),
       "f: llama.rope.dimension_count: 1; allowed: 2, the size of a head"},
      {tiny_gguf().set("llama.rope.scaling.type", "yarn"),
       "f: llama.rope.scaling.type: \"yarn\"; allowed: none, linear"},
      {tiny_gguf().set("llama.attention.layer_norm_rms_epsilon", NAN),
       "f: llama.attention.layer_norm_rms_epsilon: nan; allowed: numbers from 0 to 1"},
      {tiny_gguf().set("llama.vocab_size", 9u),
       "f: llama.vocab_size: 9; allowed: 8, the rows of token_embd.weight"},
      {tiny_gguf().set("tokenizer.ggml.tokens", std::vector<std::string>{"a"}),
       "f: number of tokenizer.ggml.tokens: 1; allowed: 8, the rows of token_embd.weight"},
      {tiny_gguf().set("tokenizer.ggml.eos_token_id", 8u),
       "f: tokenizer.ggml.eos_token_id: 8; allowed: integers from 0 to 7"},
  };
  for (const auto& c : cases) EXPECT_EQ(config_error(c.file), c.message);
}

TEST(GgufGeneration, SamplingAndEndings) {
  const test::TempDir dir;
  GgufBuilder b = tiny_gguf().set("tokenizer.ggml.eot_token_id", 3u);
  auto defaults = load_generation_config(dir.write("m.gguf", b.file()));
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(resolve_sampling({}, defaults->sampling).temperature, 0);
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(0, 3, 5));
  b.set("general.sampling.temp", 0.5f).set("general.sampling.top_p", 0.75f);
  b.set("general.sampling.penalty_repeat", 1.25f);
  defaults = load_generation_config(dir.write("m.gguf", b.file()));
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->sampling.temperature, 0.5);
  EXPECT_EQ(defaults->sampling.top_p, 0.75);
  EXPECT_EQ(defaults->sampling.top_k, 0);
  EXPECT_EQ(defaults->sampling.repetition_penalty, 1.25);
}

std::vector<float> values_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView* view = checkpoint.find(name);
  EXPECT_NE(view, nullptr) << name;
  if (view == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(view->elements()));
  EXPECT_TRUE(to_float(*view, 0, values).ok());
  return values;
}

// A layer with heads of 4 rows of one column, numbered from 0.
GgufBuilder numbered(const std::string& arch) {
  GgufBuilder b = tiny_gguf(arch);
  b.tensors.clear();
  std::vector<float> rows(8);
  std::iota(rows.begin(), rows.end(), 0.0f);
  b.tensor("token_embd.weight", {8, 1}, rows);
  b.tensor("blk.0.attn_q.weight", {8, 1}, rows).tensor("blk.0.attn_k.weight", {4, 1}, {0, 1, 2, 3});
  b.tensor("blk.0.attn_q.bias", {8}, rows).tensor("blk.0.attn_v.weight", {4, 1}, {0, 1, 2, 3});
  return b.tensor("blk.0.ffn_norm.weight", {1}, {1.5f});
}

TEST(GgufTensors, UndoThePermutationOfLlamasHeads) {
  const test::TempDir dir;
  const auto llama = Checkpoint::open(dir.write("l.gguf", numbered("llama").file()));
  ASSERT_TRUE(llama.ok()) << llama.status();
  const std::string layer = "model.layers.0.self_attn.";
  EXPECT_THAT(values_of(*llama, layer + "q_proj.weight"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(values_of(*llama, layer + "q_proj.bias"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(values_of(*llama, layer + "k_proj.weight"), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(values_of(*llama, layer + "v_proj.weight"), ElementsAre(0, 1, 2, 3));
  const auto qwen = Checkpoint::open(dir.write("q.gguf", numbered("qwen2").file()));
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_THAT(values_of(*qwen, layer + "q_proj.weight"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(GgufTensors, GemmaNormsSubtractOne) {
  const test::TempDir dir;
  const auto gemma = Checkpoint::open(dir.write("g.gguf", numbered("gemma3").file()));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_THAT(values_of(*gemma, "model.layers.0.pre_feedforward_layernorm.weight"),
              ElementsAre(0.5f));
  const auto llama = Checkpoint::open(dir.write("l.gguf", numbered("llama").file()));
  ASSERT_TRUE(llama.ok());
  EXPECT_THAT(values_of(*llama, "model.layers.0.post_attention_layernorm.weight"),
              ElementsAre(1.5f));
}

TEST(GgufTensors, UnknownNames) {
  for (const char* name :
       {"token_embd", "blk.0.attn_q", "blk.00.attn_q.weight", "blk..attn_q.weight",
        "blk.x.attn_q.weight", "v.blk.0.attn_q.weight", "blk.0.ssm_a.weight"}) {
    const Parsed p(tiny_gguf().tensor(name, {4}));
    EXPECT_THAT(std::string(gguf_tensors(p.gguf, "f").status().message()),
                HasSubstr("belongs to no part of LlamaForCausalLM"))
        << name;
  }
  const Parsed odd(tiny_gguf().set("llama.attention.head_count", 4u));
  EXPECT_THAT(std::string(gguf_tensors(odd.gguf, "f").status().message()),
              HasSubstr("tensor \"blk.0.attn_q.weight\": rows: 4; allowed: multiples of 8"));
}

TEST(StoredRow, IsAPermutationOfEachHead) {
  for (const int64_t size : {2, 4, 64}) {
    std::vector<bool> seen(static_cast<size_t>(3 * size));
    for (int64_t row = 0; row < 3 * size; ++row) {
      const int64_t at = stored_row(row, size);
      EXPECT_EQ(at / size, row / size);
      EXPECT_FALSE(seen[static_cast<size_t>(at)]);
      seen[static_cast<size_t>(at)] = true;
    }
  }
}

}  // namespace
}  // namespace tandem
