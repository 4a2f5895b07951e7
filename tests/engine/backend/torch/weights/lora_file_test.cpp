#include "engine/backend/torch/weights/lora_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/backend/torch/weights/gguf/blocks.h"
#include "tests/engine/backend/torch/weights/files.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"

namespace tandem {
namespace {

using nlohmann::json;
using test::FileTensor;
using test::safetensors_of;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

DecoderConfig llama() {
  DecoderConfig c;
  c.model_type = "llama";
  c.architecture = "LlamaForCausalLM";
  c.vocab_size = 7;
  c.hidden_size = 4;
  c.intermediate_size = 6;
  c.layers = 12;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 4;
  return c;
}

const std::string kStem = "base_model.model.model.layers.";

json about(const json& more = {}) {
  json all = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"bias", "none"}};
  all.update(more.is_null() ? json::object() : more);
  return all;
}

// Both tensors of a module with `in` inputs and `out` outputs.
std::vector<FileTensor> pair(const std::string& module, int64_t in, int64_t out, int64_t rank = 2,
                             const std::string& dtype = "F32") {
  return {{kStem + module + ".lora_A.weight", dtype, {rank, in}},
          {kStem + module + ".lora_B.weight", dtype, {out, rank}}};
}

std::vector<FileTensor> join(const std::vector<std::vector<FileTensor>>& parts) {
  std::vector<FileTensor> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const std::vector<FileTensor> kQuery = pair("3.self_attn.q_proj", 4, 8);

absl::StatusOr<LoraFile> open(const std::string& config, const std::string& weights,
                              const DecoderConfig& base = llama()) {
  const TempDir dir;
  if (!config.empty()) dir.write("adapter_config.json", config);
  if (!weights.empty()) dir.write("adapter_model.safetensors", weights);
  return LoraFile::open(dir.path(), base);
}

std::string error(const json& config, const std::vector<FileTensor>& tensors,
                  const DecoderConfig& base = llama()) {
  const auto file = open(config.dump(), safetensors_of(tensors), base);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
  return std::string(file.status().message());
}

std::string config_error(const char* field, const json& value) {
  return error(about({{field, value}}), kQuery);
}

TEST(LoraFile, EveryLinearLayer) {
  const auto tensors = join({pair("10.mlp.down_proj", 6, 4, 2, "F16"),
                             pair("3.mlp.gate_proj", 4, 6, 2, "BF16"), pair("3.mlp.up_proj", 4, 6),
                             pair("3.self_attn.k_proj", 4, 4), pair("3.self_attn.o_proj", 8, 4),
                             pair("3.self_attn.q_proj", 4, 8), pair("3.self_attn.v_proj", 4, 4)});
  const auto file = open(about().dump(), safetensors_of(tensors));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->rank, 2);
  const auto module = [](int layer, LoraPart part, size_t matrix, const std::string& name) {
    return LoraModule{layer, part, matrix, kStem + name, 2, 2.0};
  };
  EXPECT_THAT(file->modules,
              testing::ElementsAre(module(3, LoraPart::kQkv, 0, "3.self_attn.q_proj"),
                                   module(3, LoraPart::kQkv, 1, "3.self_attn.k_proj"),
                                   module(3, LoraPart::kQkv, 2, "3.self_attn.v_proj"),
                                   module(3, LoraPart::kO, 0, "3.self_attn.o_proj"),
                                   module(3, LoraPart::kUp, 0, "3.mlp.gate_proj"),
                                   module(3, LoraPart::kUp, 1, "3.mlp.up_proj"),
                                   module(10, LoraPart::kDown, 0, "10.mlp.down_proj")));
}

TEST(LoraFile, FusedAndPrefixedNames) {
  DecoderConfig phi = llama();
  phi.names.qkv = {"self_attn.qkv_proj"};
  phi.names.up = {"mlp.gate_up_proj"};
  const auto fused = open(about().dump(),
                          safetensors_of(join({pair("0.self_attn.qkv_proj", 4, 16),
                                               pair("0.mlp.gate_up_proj", 4, 12)})),
                          phi);
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_EQ(fused->modules.size(), 2u);

  DecoderConfig gpt = llama();
  gpt.names.layer = "h.";
  gpt.names.prefix = "transformer.";
  for (const std::string front : {"transformer.h.", "h.", "model.h."}) {
    std::vector<FileTensor> tensors = pair("", 4, 8);
    tensors[0].name = "base_model.model." + front + "0.self_attn.q_proj.lora_A.weight";
    tensors[1].name = "base_model.model." + front + "0.self_attn.q_proj.lora_B.weight";
    EXPECT_TRUE(open(about().dump(), safetensors_of(tensors), gpt).ok()) << front;
  }
  // A base model's file, and a causal model's adapter.
  DecoderConfig bare = llama();
  bare.names.layer = "layers.";
  EXPECT_TRUE(open(about().dump(), safetensors_of(kQuery), bare).ok());
}

TEST(LoraFile, ScalesFollowFromAlphaAndRank) {
  const auto tensors =
      join({pair("0.self_attn.k_proj", 4, 4, 5), pair("0.self_attn.q_proj", 4, 8, 3),
            pair("1.self_attn.q_proj", 4, 8)});
  const json config =
      about({{"rank_pattern", {{"k_proj", 5}, {"^model.layers.0.self_attn.q_proj", 3}}},
             {"alpha_pattern", {{"layers\\.1.self_attn.q_proj", 7.5}}}});
  const auto plain = open(config.dump(), safetensors_of(tensors));
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_EQ(plain->modules.size(), 3u);
  EXPECT_EQ(plain->rank, 5);
  EXPECT_DOUBLE_EQ(plain->modules[0].scale, 4.0 / 3);
  EXPECT_DOUBLE_EQ(plain->modules[1].scale, 4.0 / 5);
  EXPECT_DOUBLE_EQ(plain->modules[2].scale, 7.5 / 2);
  json stabilized = config;
  stabilized["use_rslora"] = true;
  const auto rslora = open(stabilized.dump(), safetensors_of(tensors));
  ASSERT_TRUE(rslora.ok()) << rslora.status();
  EXPECT_DOUBLE_EQ(rslora->modules[0].scale, 4 / std::sqrt(3));
}

TEST(LoraFile, WhatPeftWritesIsAccepted) {
  json config = about({{"alora_invocation_tokens", nullptr},
                       {"alpha_pattern", json::object()},
                       {"auto_mapping", nullptr},
                       {"base_model_name_or_path", "meta/llama"},
                       {"exclude_modules", nullptr},
                       {"fan_in_fan_out", false},
                       {"inference_mode", true},
                       {"init_lora_weights", true},
                       {"layers_pattern", nullptr},
                       {"layers_to_transform", nullptr},
                       {"loftq_config", json::object()},
                       {"lora_dropout", 0.05},
                       {"megatron_core", "megatron.core"},
                       {"modules_to_save", nullptr},
                       {"qalora_group_size", 16},
                       {"target_modules", json::array()},
                       {"task_type", "CAUSAL_LM"},
                       {"use_dora", false},
                       {"a_later_field", nullptr}});
  for (const json& layers : {json(3), json::array({3}), json(nullptr)}) {
    config["layers_to_transform"] = layers;
    for (const json& targets : {json("all-linear"), json(".*q_proj"),
                                json::array({"layers.3.self_attn.q_proj"}), json(nullptr)}) {
      config["target_modules"] = targets;
      const auto file = open(config.dump(), safetensors_of(kQuery));
      EXPECT_TRUE(file.ok()) << file.status();
    }
  }
  config["layers_to_transform"] = 3;
  config["target_modules"] = {"q_proj", "k_proj"};
  config["exclude_modules"] = {"k_proj"};
  config["layers_pattern"] = "layers";
  EXPECT_TRUE(open(config.dump(), safetensors_of(kQuery)).ok());
}

TEST(LoraFile, OtherKindsOfAdaptersAreRefused) {
  EXPECT_THAT(config_error("peft_type", "IA3"), HasSubstr("peft_type: \"IA3\"; allowed: \"LORA\""));
  EXPECT_THAT(config_error("peft_type", nullptr), HasSubstr("peft_type: missing"));
  EXPECT_THAT(config_error("use_dora", true), HasSubstr("use_dora: true; allowed: false (DoRA"));
  EXPECT_THAT(config_error("bias", "all"), HasSubstr("bias: \"all\"; allowed: \"none\""));
  EXPECT_THAT(config_error("lora_bias", true), HasSubstr("lora_bias: true; allowed: false"));
  EXPECT_THAT(config_error("modules_to_save", json::array({"lm_head"})),
              HasSubstr("modules_to_save: [\"lm_head\"]; allowed: null"));
  EXPECT_THAT(config_error("trainable_token_indices", json::array({1})),
              HasSubstr("trainable_token_indices: [1]; allowed: null"));
  for (const char* field : {"alora_invocation_tokens", "target_parameters", "layer_replication",
                            "use_qalora", "megatron_config", "a_later_field"}) {
    EXPECT_THAT(config_error(field, json::array({1})), HasSubstr(std::string(field) + ": [1]; a"));
  }
  for (const char* start : {"pissa", "pissa_niter_4", "olora", "loftq", "corda"}) {
    EXPECT_THAT(config_error("init_lora_weights", start),
                HasSubstr("allowed: true, false, gaussian, eva, orthogonal"));
  }
}

TEST(LoraFile, ConfigurationValuesAreChecked) {
  EXPECT_THAT(config_error("r", 0), HasSubstr("r: 0; allowed: integers from 1 to 256"));
  EXPECT_THAT(config_error("r", 257), HasSubstr("r: 257"));
  EXPECT_THAT(config_error("r", "8"), HasSubstr("r: \"8\""));
  EXPECT_THAT(config_error("lora_alpha", -1), HasSubstr("lora_alpha: -1; allowed: numbers from 0"));
  EXPECT_THAT(config_error("lora_alpha", 1e300), HasSubstr("lora_alpha: "));
  EXPECT_THAT(config_error("use_rslora", 1), HasSubstr("use_rslora: 1; allowed: true, false"));
  EXPECT_THAT(config_error("rank_pattern", json::array()), HasSubstr("rank_pattern: []"));
  EXPECT_THAT(config_error("rank_pattern", {{"q_proj", 300}}),
              HasSubstr("rank_pattern.q_proj: 300"));
  EXPECT_THAT(config_error("rank_pattern", {{".*q_proj", 2}}),
              HasSubstr("rank_pattern: key: \".*q_proj\"; allowed: names"));
  EXPECT_THAT(config_error("alpha_pattern", {{"", 2}}), HasSubstr("alpha_pattern: key: \"\""));
  EXPECT_THAT(config_error("alpha_pattern", {{"q_proj", "x"}}),
              HasSubstr("alpha_pattern.q_proj: \"x\"; allowed: numbers"));
  EXPECT_THAT(config_error("alpha_pattern", {{"q_proj", 2}, {"self_attn.q_proj", 3}}),
              HasSubstr("alpha_pattern: several keys match module"));
  EXPECT_THAT(config_error("target_modules", json::array({1})), HasSubstr("target_modules: [1]"));
  EXPECT_THAT(config_error("layers_to_transform", 12),
              HasSubstr("layers_to_transform: 12; allowed: layers from 0 to 11"));
  EXPECT_THAT(config_error("layers_to_transform", json::array({1.5})),
              HasSubstr("layers_to_transform: [1.5]"));
  EXPECT_THAT(config_error("layers_pattern", "blocks"),
              HasSubstr("layers_pattern: \"blocks\"; allowed: null, layers"));
}

TEST(LoraFile, TensorsAreThoseOfTheTargets) {
  EXPECT_THAT(config_error("target_modules", json::array({"k_proj"})),
              HasSubstr("without module \"model.layers.3.self_attn.q_proj\""));
  EXPECT_THAT(config_error("target_modules", json::array({"q_proj"})),
              HasSubstr("module \"model.layers.0.self_attn.q_proj\", but adapter_model.safetensors "
                        "has no tensors of it"));
  EXPECT_THAT(error(about({{"target_modules", {"q_proj"}}, {"layers_to_transform", 2}}), kQuery),
              HasSubstr("target_modules"));
}

TEST(LoraFile, UnknownTensorsAreRefused) {
  const auto named = [](const std::string& name) {
    return error(about(), {{name, "F32", {2, 4}}});
  };
  EXPECT_THAT(named("base_model.model.lm_head.lora_A.weight"),
              HasSubstr("an embedding or the head; allowed: linear layers"));
  EXPECT_THAT(named("base_model.model.model.embed_tokens.lora_embedding_A"),
              HasSubstr("an embedding or the head"));
  EXPECT_THAT(named(kStem + "0.self_attn.q_proj.lora_magnitude_vector"), HasSubstr("DoRA"));
  EXPECT_THAT(named(kStem + "0.self_attn.q_proj.lora_B.bias"), HasSubstr("a bias"));
  EXPECT_THAT(named(kStem + "12.self_attn.q_proj.lora_A.weight"),
              HasSubstr("layer 12; allowed: layers 0 to 11"));
  EXPECT_THAT(named(kStem + "99999999999999999999.self_attn.q_proj.lora_A.weight"),
              HasSubstr("not a linear layer"));
  EXPECT_THAT(named(kStem + "0.self_attn.qkv_proj.lora_A.weight"),
              AllOf(HasSubstr("not a linear layer of the base model"),
                    HasSubstr("down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj")));
  EXPECT_THAT(named("model.layers.0.self_attn.q_proj.lora_A.weight"), HasSubstr("not a linear"));
  EXPECT_THAT(named(kStem + "0.self_attn.q_proj.lora_A.default.weight"), HasSubstr("not a linear"));
  EXPECT_THAT(named(kStem + "0.input_layernorm.lora_A.weight"), HasSubstr("not a linear"));
  EXPECT_THAT(named(""), HasSubstr("not a linear"));
  // One front for all modules: a layer has one name.
  std::vector<FileTensor> twice = join({kQuery, kQuery});
  twice[0].name = "base_model.model.layers.3.self_attn.q_proj.lora_A.weight";
  twice[1].name = "base_model.model.layers.3.self_attn.q_proj.lora_B.weight";
  EXPECT_THAT(error(about(), twice), HasSubstr("not a linear layer"));
  EXPECT_THAT(error(about(), {}), HasSubstr("tensors: 0; allowed: 1 or more"));
}

TEST(LoraFile, PairsShapesAndTypesAreChecked) {
  EXPECT_THAT(error(about(), {kQuery[0]}),
              HasSubstr("q_proj.lora_B.weight\": missing, but \"" + kQuery[0].name));
  EXPECT_THAT(error(about(), {kQuery[1]}), HasSubstr("q_proj.lora_A.weight\": missing"));
  EXPECT_THAT(error(about(), pair("0.self_attn.q_proj", 5, 8)),
              HasSubstr("lora_A.weight\": shape [2, 5], expected [2, 4] for rank 2"));
  EXPECT_THAT(error(about(), pair("0.self_attn.q_proj", 4, 4)),
              HasSubstr("lora_B.weight\": shape [4, 2], expected [8, 2]"));
  EXPECT_THAT(error(about(), pair("0.self_attn.q_proj", 4, 8, 3)),
              HasSubstr("shape [3, 4], expected [2, 4] for rank 2 of adapter_config.json"));
  EXPECT_THAT(error(about({{"rank_pattern", {{"q_proj", 3}}}}), kQuery), HasSubstr("for rank 3"));
  EXPECT_THAT(error(about(), {{kQuery[0].name, "F32", {8}}, kQuery[1]}), HasSubstr("shape [8]"));
  EXPECT_THAT(error(about(), pair("0.self_attn.q_proj", 4, 8, 2, "I64")), HasSubstr("dtype I64"));
}

TEST(LoraFile, NumbersMustBeFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::string file = safetensors_of(kQuery);
    std::memcpy(file.data() + file.size() - 3 * sizeof(float), &bad, sizeof(bad));
    const auto opened = open(about().dump(), file);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(opened.status().message()),
                AllOf(HasSubstr("q_proj.lora_B.weight\"[13]: "), HasSubstr("finite numbers")));
  }
}

TEST(LoraFile, FilesAreNeeded) {
  EXPECT_EQ(open("", safetensors_of(kQuery)).status().code(), absl::StatusCode::kNotFound);
  const auto no_weights = open(about().dump(), "");
  EXPECT_EQ(no_weights.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_weights.status().message()), HasSubstr("adapter_model.safetensors"));
  const TempDir dir;
  dir.write("adapter_config.json", about().dump());
  dir.write("adapter_model.bin", "PK");
  EXPECT_THAT(std::string(LoraFile::open(dir.path(), llama()).status().message()),
              HasSubstr("adapter_model.bin is not read"));
  EXPECT_FALSE(open("[]", safetensors_of(kQuery)).ok());
  EXPECT_FALSE(open("{", safetensors_of(kQuery)).ok());
  EXPECT_FALSE(open(about().dump(), safetensors_of(kQuery).substr(0, 40)).ok());
}

TEST(LoraFile, EncodersAreRefused) {
  DecoderConfig t5 = llama();
  t5.architecture = "T5ForConditionalGeneration";
  t5.encoder = std::make_shared<DecoderConfig>(llama());
  EXPECT_THAT(error(about(), kQuery, t5),
              HasSubstr("base model: T5ForConditionalGeneration; allowed: decoders"));
  DecoderConfig embedding = llama();
  embedding.bidirectional = true;
  EXPECT_THAT(error(about(), kQuery, embedding), HasSubstr("base model: LlamaForCausalLM"));
}

test::GgufBuilder gguf_adapter() {
  test::GgufBuilder b;
  b.set("general.type", "adapter").set("adapter.type", "lora");
  b.set("general.architecture", "llama").set("adapter.lora.alpha", 6.0F);
  return b;
}

// Both tensors of a layer with `in` inputs and `out` outputs.
void add_pair(test::GgufBuilder* b, const std::string& layer, int64_t in, int64_t out,
              int64_t rank) {
  b->tensor(layer + ".weight.lora_a", {rank, in}).tensor(layer + ".weight.lora_b", {out, rank});
}

absl::StatusOr<LoraFile> open_gguf(const test::GgufBuilder& b,
                                   const DecoderConfig& base = llama()) {
  const TempDir dir;
  return LoraFile::open(dir.write("a.gguf", b.file()), base);
}

std::string gguf_error(const test::GgufBuilder& b, const DecoderConfig& base = llama()) {
  const auto file = open_gguf(b, base);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
  const std::string message(file.status().message());
  return message.substr(std::min(message.size(), message.find("a.gguf")));
}

TEST(LoraGgufFile, EveryLinearLayer) {
  test::GgufBuilder b = gguf_adapter();
  add_pair(&b, "blk.3.attn_q", 4, 8, 2);
  add_pair(&b, "blk.3.attn_k", 4, 4, 3);
  add_pair(&b, "blk.3.attn_v", 4, 4, 1);
  add_pair(&b, "blk.3.attn_output", 8, 4, 2);
  add_pair(&b, "blk.3.ffn_gate", 4, 6, 2);
  add_pair(&b, "blk.3.ffn_up", 4, 6, 2);
  add_pair(&b, "blk.10.ffn_down", 6, 4, 6);
  const auto file = open_gguf(b);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->rank, 6);
  const auto module = [](int layer, LoraPart part, size_t matrix, const std::string& name,
                         int rank) {
    return LoraModule{layer, part,       matrix, "base_model.model.layers." + name,
                      rank,  6.0 / rank, true};
  };
  EXPECT_THAT(file->modules,
              testing::ElementsAre(module(3, LoraPart::kQkv, 0, "3.self_attn.q_proj", 2),
                                   module(3, LoraPart::kQkv, 1, "3.self_attn.k_proj", 3),
                                   module(3, LoraPart::kQkv, 2, "3.self_attn.v_proj", 1),
                                   module(3, LoraPart::kO, 0, "3.self_attn.o_proj", 2),
                                   module(3, LoraPart::kUp, 0, "3.mlp.gate_proj", 2),
                                   module(3, LoraPart::kUp, 1, "3.mlp.up_proj", 2),
                                   module(10, LoraPart::kDown, 0, "10.mlp.down_proj", 6)));
  // Only rows of queries and keys are permuted.
  const auto head_rows = [&](const std::string& name) {
    return file->tensors.find("base_model.model.layers.3." + name)->head_rows;
  };
  EXPECT_EQ(head_rows("self_attn.q_proj.lora_B.weight"), 4);
  EXPECT_EQ(head_rows("self_attn.k_proj.lora_B.weight"), 4);
  EXPECT_EQ(head_rows("self_attn.q_proj.lora_A.weight"), 0);
  EXPECT_EQ(head_rows("self_attn.v_proj.lora_B.weight"), 0);
  EXPECT_EQ(head_rows("mlp.up_proj.lora_B.weight"), 0);
}

TEST(LoraGgufFile, WhatLlamaCppAcceptsIsAccepted) {
  test::GgufBuilder b = gguf_adapter();
  b.erase("adapter.lora.alpha").set("general.name", "any");
  // ggml writes a matrix of one row as a vector.
  b.tensor("blk.0.attn_v.weight.lora_a", {4}).tensor("blk.0.attn_v.weight.lora_b", {4, 1});
  DecoderConfig mistral = llama();
  mistral.model_type = "mistral";
  for (const DecoderConfig& base : {llama(), mistral}) {
    const auto file = open_gguf(b, base);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->modules[0].scale, 1);
    EXPECT_EQ(file->rank, 1);
  }
}

TEST(LoraGgufFile, OtherFilesAreRefusedByKey) {
  test::GgufBuilder good = gguf_adapter();
  add_pair(&good, "blk.0.attn_v", 4, 4, 2);
  const auto with = [&](const char* key, auto value) {
    test::GgufBuilder b = good;
    return gguf_error(b.set(key, value));
  };
  const auto without = [&](const char* key) {
    test::GgufBuilder b = good;
    return gguf_error(b.erase(key));
  };
  EXPECT_EQ(with("general.type", "model"), "a.gguf: general.type: \"model\"; allowed: \"adapter\"");
  EXPECT_EQ(without("general.type"), "a.gguf: general.type: missing; allowed: strings");
  EXPECT_EQ(with("adapter.type", "control_vector"),
            "a.gguf: adapter.type: \"control_vector\"; allowed: \"lora\"");
  EXPECT_EQ(with("general.architecture", "qwen2"),
            "a.gguf: general.architecture: \"qwen2\"; allowed: llama, as of the base model");
  EXPECT_EQ(with("adapter.lora.alpha", -1.0F),
            "a.gguf: adapter.lora.alpha: -1; allowed: numbers from 0 to 1e+06");
  EXPECT_THAT(with("adapter.lora.alpha", "2"), HasSubstr("a.gguf: adapter.lora.alpha: a value"));
  EXPECT_THAT(with("adapter.alora.invocation_tokens", std::vector<int32_t>{1}),
              HasSubstr("a.gguf: adapter.alora.invocation_tokens: set; allowed: unset"));
  DecoderConfig other = llama();
  other.model_type = "starcoder2";
  EXPECT_THAT(gguf_error(good, other), HasSubstr("a.gguf: base model: LlamaForCausalLM"));
  EXPECT_EQ(gguf_error(gguf_adapter()), "a.gguf: tensors: 0; allowed: 1 or more");
}

TEST(LoraGgufFile, OtherTensorsAreRefusedByName) {
  const auto refused = [](const std::string& tensor, std::vector<int64_t> shape = {2, 4}) {
    test::GgufBuilder b = gguf_adapter();
    add_pair(&b, "blk.0.attn_v", 4, 4, 2);
    b.tensor(tensor, std::move(shape));
    return gguf_error(b);
  };
  for (const std::string name : {"token_embd.weight.lora_a", "output.weight.lora_b"}) {
    EXPECT_EQ(refused(name), "a.gguf: tensor \"" + name +
                                 "\": an embedding or the head; allowed: linear layers of decoder "
                                 "layers");
  }
  for (const std::string name :
       {"blk.0.attn_norm.weight", "blk.0.ffn_up.bias.lora_a", "blk.0.ffn_up.weight", "x.lora_a",
        "blk.x.ffn_up.weight.lora_a", "blk.0.ffn_up.weight.lora_c"}) {
    EXPECT_THAT(refused(name), testing::StartsWith("a.gguf: tensor \"" + name +
                                                   "\": not part of an adapted linear layer"));
  }
  EXPECT_EQ(refused("blk.0.ffn_up.weight.lora_a"),
            "a.gguf: tensor \"blk.0.ffn_up.weight.lora_b\": missing, but "
            "\"blk.0.ffn_up.weight.lora_a\" is there");
}

TEST(LoraGgufFile, ShapesAndTypesAreChecked) {
  const auto refused = [](const std::string& layer, std::vector<int64_t> a, std::vector<int64_t> b,
                          uint32_t type = 0) {
    test::GgufBuilder file = gguf_adapter();
    file.tensor(layer + ".weight.lora_a", std::move(a));
    file.tensor(layer + ".weight.lora_b", std::move(b));
    if (type != 0) {
      const BlockFormat* const format = find_block_format(type);
      file.tensors[0].type = type;
      file.tensors[0].data.assign(file.tensors[0].data.size() / 4 /
                                      static_cast<size_t>(format->values) *
                                      static_cast<size_t>(format->bytes),
                                  '\0');
    }
    return gguf_error(file);
  };
  EXPECT_EQ(refused("blk.0.attn_q", {2, 5}, {8, 2}),
            "a.gguf: tensor \"blk.0.attn_q.weight.lora_a\": shape [2, 5], expected [2, 4] for rank "
            "2");
  EXPECT_EQ(refused("blk.0.attn_q", {2, 4}, {8, 3}),
            "a.gguf: tensor \"blk.0.attn_q.weight.lora_b\": shape [8, 3], expected [8, 2] for rank "
            "2");
  EXPECT_EQ(refused("blk.0.attn_q", {2, 4}, {7, 2}),
            "a.gguf: tensor \"blk.0.attn_q.weight.lora_b\": shape [7, 2], expected [8, 2] for rank "
            "2");
  EXPECT_EQ(refused("blk.0.attn_q", {257, 4}, {8, 257}),
            "a.gguf: tensor \"blk.0.attn_q.weight.lora_a\": rank: 257; allowed: 1 to 256");
  EXPECT_EQ(refused("blk.12.attn_q", {2, 4}, {8, 2}),
            "a.gguf: tensor \"blk.12.attn_q.weight.lora_a\": not a linear layer of the base model; "
            "allowed: linear layers of its 12 layers");
  EXPECT_EQ(refused("blk.0.attn_norm", {2, 4}, {8, 2}),
            "a.gguf: tensor \"blk.0.attn_norm.weight.lora_a\": not a linear layer of the base "
            "model; allowed: linear layers of its 12 layers");
  EXPECT_EQ(refused("blk.0.attn_q", {1, 2, 4}, {8, 2}),
            "a.gguf: tensor \"blk.0.attn_q.weight.lora_a\": shape [1, 2, 4]; allowed: matrices");
  EXPECT_EQ(refused("blk.0.attn_q", {2, 32}, {8, 2}, 2),
            "a.gguf: tensor \"blk.0.attn_q.weight.lora_a\": type: Q4_0; allowed: F32, F16, BF16, "
            "Q8_0");
  test::GgufBuilder nan = gguf_adapter();
  nan.tensor("blk.0.attn_v.weight.lora_a", {1, 4}, {0, 0, std::nanf(""), 0});
  nan.tensor("blk.0.attn_v.weight.lora_b", {4, 1});
  EXPECT_EQ(gguf_error(nan),
            "a.gguf: tensor \"blk.0.attn_v.weight.lora_a\"[2]: nan; allowed: finite numbers");
  const TempDir dir;
  EXPECT_TRUE(LoraFile::open_header(dir.write("a.gguf", nan.file()), llama()).ok());
  EXPECT_EQ(LoraFile::open(dir.path() + "/none.gguf", llama()).status().code(),
            absl::StatusCode::kNotFound);
}

// Numbers are refused before they are rounded to a type that cannot hold them.
TEST(LoraFile, NumbersBeyondTheConfiguredType) {
  const auto with = [](float number, DType type) {
    test::GgufBuilder b = gguf_adapter();
    b.tensor("blk.0.attn_v.weight.lora_a", {1, 4}, {0, number, 0, 0});
    b.tensor("blk.0.attn_v.weight.lora_b", {4, 1});
    const TempDir dir;
    return LoraFile::open(dir.write("a.gguf", b.file()), llama(), FileAccess::kMapped, type)
        .status();
  };
  EXPECT_TRUE(with(3.4e38f, DType::kAuto).ok());
  EXPECT_TRUE(with(3.3e38f, DType::kBFloat16).ok());
  EXPECT_TRUE(with(-65504.0f, DType::kFloat16).ok());
  const absl::Status half = with(-65600.0f, DType::kFloat16);
  EXPECT_EQ(half.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(half.message()),
              testing::HasSubstr("a.gguf: tensor \"blk.0.attn_v.weight.lora_a\": -65600; allowed: "
                                 "-65504 to 65504 in fp16 (adapter_dtype)"));
  EXPECT_EQ(with(3.4e38f, DType::kBFloat16).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
