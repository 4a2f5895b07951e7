#include "engine/backend/torch/weights/hf/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;

json base(const std::string& type = "llama") {
  return {{"model_type", type},      {"vocab_size", 100},      {"hidden_size", 32},
          {"intermediate_size", 64}, {"num_hidden_layers", 3}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}};
}

absl::StatusOr<DecoderConfig> with(const json& changes, const std::string& type = "llama") {
  json object = base(type);
  for (const auto& [key, value] : changes.items()) object[key] = value;
  return parse_hf_config(object.dump(), "config.json");
}

DecoderConfig good(const json& changes, const std::string& type = "llama") {
  const auto config = with(changes, type);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(DecoderConfig{});
}

std::string error(const json& changes, const std::string& type = "llama") {
  const auto config = with(changes, type);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << changes;
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.json: "));
  return std::string(config.status().message());
}

TEST(HfConfig, Llama) {
  const DecoderConfig c = good({{"architectures", {"LlamaForCausalLM"}},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 500000},
                                {"max_position_embeddings", 4096},
                                {"torch_dtype", "bfloat16"},
                                {"eos_token_id", {2, 3}},
                                {"bos_token_id", 1},
                                {"pretraining_tp", 1},
                                {"rope_scaling", nullptr},
                                {"some_note", "for people"}});
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.vocab_size, 100);
  EXPECT_EQ(c.hidden_size, 32);
  EXPECT_EQ(c.intermediate_size, 64);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.rope.kind, RopeConfig::kDefault);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_EQ(c.max_positions, 4096);
  EXPECT_EQ(c.dtype, SafeDType::kBF16);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2, 3));
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_FALSE(c.tie_word_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias);
  EXPECT_EQ(c.window, 0);
}

TEST(HfConfig, DefaultsAreTransformers) {
  const json left_out = {{"num_key_value_heads", nullptr}};
  const DecoderConfig llama = good(left_out);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.rope.theta, 10000);
  EXPECT_FALSE(llama.dtype.has_value());
  EXPECT_TRUE(llama.eos_token_ids.empty());
  const DecoderConfig mistral = good({{"num_attention_heads", 16}}, "mistral");
  EXPECT_EQ(mistral.window, 4096);
  EXPECT_EQ(mistral.max_positions, 131072);
  json absent = base("mistral");
  absent.erase("num_key_value_heads");
  absent["num_attention_heads"] = 16;
  EXPECT_EQ(parse_hf_config(absent.dump(), "c")->kv_heads, 8);
  EXPECT_EQ(good({}, "qwen2").max_positions, 32768);
}

TEST(HfConfig, Biases) {
  const DecoderConfig llama = good({{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  const DecoderConfig qwen = good({}, "qwen2");
  EXPECT_TRUE(qwen.qkv_bias && !qwen.o_bias && !qwen.mlp_bias);
  const DecoderConfig mistral = good({{"attention_bias", true}}, "mistral");
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias);
}

TEST(HfConfig, RopeInBothSpellings) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const DecoderConfig old = good({{"rope_theta", 5e5}, {"rope_scaling", llama3}});
  json both = llama3;
  both["rope_theta"] = 5e5;
  const DecoderConfig now = good({{"rope_parameters", both}});
  for (const DecoderConfig& c : {old, now}) {
    EXPECT_EQ(c.rope.kind, RopeConfig::kLlama3);
    EXPECT_EQ(c.rope.theta, 5e5);
    EXPECT_EQ(c.rope.factor, 8);
    EXPECT_EQ(c.rope.low_freq_factor, 1);
    EXPECT_EQ(c.rope.high_freq_factor, 4);
    EXPECT_EQ(c.rope.original_max_positions, 8192);
  }
  const DecoderConfig linear = good({{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}});
  EXPECT_EQ(linear.rope.kind, RopeConfig::kLinear);
  EXPECT_EQ(linear.rope.factor, 2.5);
  EXPECT_EQ(good({{"rope_parameters", {{"rope_type", "default"}}}, {"rope_theta", 7.0}}).rope.theta,
            7);
  json no_context = llama3;
  no_context.erase("original_max_position_embeddings");
  EXPECT_EQ(good({{"rope_scaling", no_context}}).rope.original_max_positions, 2048);
}

TEST(HfConfig, RopeErrors) {
  const auto rope = [](const json& object) { return error({{"rope_scaling", object}}); };
  EXPECT_EQ(rope({{"rope_type", "proportional"}}),
            "config.json: rope_scaling.rope_type: \"proportional\"; allowed: default, linear, "
            "dynamic, llama3, yarn, longrope");
  EXPECT_THAT(rope({{"type", "dynamic"}}), HasSubstr("rope_scaling.factor: missing"));
  EXPECT_THAT(rope({{"type", "linear"}}), HasSubstr("rope_scaling.factor: missing"));
  EXPECT_THAT(rope({{"type", "linear"}, {"factor", 0.5}}), HasSubstr("factor: 0.5; allowed: numb"));
  EXPECT_THAT(rope({{"type", "linear"}, {"factor", "2"}}), HasSubstr("factor: \"2\""));
  EXPECT_THAT(rope({{"rope_type", "llama3"}, {"factor", 8}}),
              HasSubstr("low_freq_factor: missing"));
  EXPECT_THAT(rope({{"rope_type", "llama3"},
                    {"factor", 8},
                    {"low_freq_factor", 4},
                    {"high_freq_factor", 4}}),
              HasSubstr("high_freq_factor: 4; allowed: more than low_freq_factor, which is 4"));
  EXPECT_THAT(rope({{"rope_type", "default"}, {"mrope_section", {1, 1, 2}}}),
              HasSubstr("rope_scaling.mrope_section: [1,1,2]; allowed: nothing"));
  EXPECT_THAT(rope({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor: 0.5"));
  EXPECT_THAT(rope("linear"), HasSubstr("rope_scaling: \"linear\"; allowed: an object"));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
              HasSubstr("rope_parameters.full_attention"));
  EXPECT_THAT(error({{"rope_theta", 0}}), HasSubstr("rope_theta: 0"));
}

TEST(HfConfig, Frequencies) {
  RopeConfig rope;
  EXPECT_THAT(rope_inverse_frequencies(rope, 4), ElementsAre(1.0f, FloatEq(0.01f)));
  rope.kind = RopeConfig::kLinear;
  rope.factor = 4;
  EXPECT_THAT(rope_inverse_frequencies(rope, 4), ElementsAre(0.25f, FloatEq(0.0025f)));
  // Wavelengths of 6.3, 62.8 and 628 positions: kept, in between, scaled.
  rope = {RopeConfig::kLlama3, 1e3, 8, 1, 4, 100};
  const float wave = 6.2831855f / 0.1f, smooth = (100 / wave - 1) / 3;
  EXPECT_THAT(
      rope_inverse_frequencies(rope, 6),
      ElementsAre(1.0f, FloatEq((1 - smooth) * 0.1f / 8 + smooth * 0.1f), FloatEq(0.01f / 8)));
}

// Transformers' values are tested by the golden models.
TEST(HfConfig, RopeOfLongContexts) {
  const DecoderConfig dynamic = good({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}});
  EXPECT_EQ(dynamic.rope.kind, RopeConfig::kDefault);
  EXPECT_EQ(dynamic.max_positions, 2048);

  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  const auto read = [](const json& object) { return good({{"rope_scaling", object}}).rope; };
  EXPECT_EQ(read(yarn).kind, RopeConfig::kYarn);
  EXPECT_EQ(read(yarn).original_max_positions, 512);
  EXPECT_DOUBLE_EQ(read(yarn).attention_factor, 0.1 * std::log(4.0) + 1);
  yarn.update({{"mscale", 2.0}, {"mscale_all_dim", 1.0}});
  EXPECT_DOUBLE_EQ(read(yarn).attention_factor,
                   (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  yarn.update(
      {{"attention_factor", 1.5}, {"beta_fast", 16}, {"beta_slow", 2}, {"truncate", false}});
  EXPECT_EQ(read(yarn).attention_factor, 1.5);
  EXPECT_EQ(read(yarn).beta_fast, 16);
  EXPECT_FALSE(read(yarn).truncate);
  const auto refused = [&](const json& changes) {
    json object = yarn;
    object.update(changes);
    return error({{"rope_scaling", object}});
  };
  EXPECT_THAT(refused({{"beta_fast", 2}}), HasSubstr("beta_fast: 2; allowed: more than beta_slow"));
  EXPECT_THAT(refused({{"rope_theta", 0.5}}), HasSubstr("rope_theta: 0.5; allowed: more than 1"));
  EXPECT_THAT(refused({{"short_factor", {1}}}), HasSubstr("short_factor: [1]; allowed: nothing"));

  const json longrope = {{"type", "longrope"},
                         {"short_factor", {1.0, 1.5, 2.0, 2.5}},
                         {"long_factor", {2.0, 3.0, 4.0, 5.0}}};
  const DecoderConfig c =
      good({{"rope_scaling", longrope}, {"original_max_position_embeddings", 1024}}, "phi3");
  EXPECT_EQ(c.rope.kind, RopeConfig::kLongRope);
  EXPECT_THAT(c.rope.stretch, ElementsAre(1.0f, 1.5f, 2.0f, 2.5f));
  EXPECT_EQ(c.max_positions, 1024);  // of 4096
  EXPECT_DOUBLE_EQ(c.rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(1024.0)));
  json shorter = longrope;
  shorter["long_factor"] = {2.0};
  EXPECT_THAT(error({{"rope_scaling", shorter}}, "phi3"),
              HasSubstr("rope_scaling.long_factor: [2.0]; allowed: a list of 4 numbers"));
  shorter["long_factor"] = {2.0, 3.0, 4.0, 0.0};
  EXPECT_THAT(error({{"rope_scaling", shorter}}, "phi3"), HasSubstr("long_factor: [2.0,3.0"));
}

TEST(HfConfig, Windows) {
  EXPECT_EQ(good({{"sliding_window", 16}}, "mistral").window, 16);
  EXPECT_EQ(good({{"sliding_window", nullptr}}, "mistral").window, 0);
  const json sliding = {"sliding_attention", "sliding_attention", "sliding_attention"};
  const json full = {"full_attention", "full_attention", "full_attention"};
  const json mixed = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(good({{"sliding_window", 16}, {"layer_types", sliding}}, "mistral").window, 16);
  EXPECT_EQ(good({{"layer_types", full}}).window, 0);
  EXPECT_EQ(good({{"sliding_window", 16}, {"layer_types", full}}, "mistral").window, 0);
  EXPECT_THAT(error({{"sliding_window", 16}}), HasSubstr("sliding_window: 16; allowed: null for"));
  EXPECT_THAT(error({{"sliding_window", 0}}, "mistral"),
              HasSubstr("sliding_window: 0; allowed: in"));

  const json on = {{"use_sliding_window", true}, {"sliding_window", 16}};
  const auto qwen = [&](const json& more) {
    json changes = on;
    changes.update(more);
    return changes;
  };
  EXPECT_EQ(good({{"sliding_window", 16}}, "qwen2").window, 0);
  EXPECT_EQ(good(on, "qwen2").window, 0);  // max_window_layers is 28 by default
  EXPECT_EQ(good(qwen({{"max_window_layers", 3}}), "qwen2").window, 0);
  EXPECT_EQ(good(qwen({{"max_window_layers", 0}}), "qwen2").window, 16);
  EXPECT_EQ(good(qwen({{"layer_types", sliding}}), "qwen2").window, 16);
  EXPECT_EQ(good(qwen({{"layer_types", full}}), "qwen2").window, 0);
  for (const json& some : {json{{"max_window_layers", 1}}, json{{"layer_types", mixed}}}) {
    const DecoderConfig c = good(qwen(some), "qwen2");
    EXPECT_EQ(c.window, 16);
    EXPECT_EQ(c.window_of(0), 0) << some;
    EXPECT_EQ(c.window_of(1), 16) << some;
  }
  EXPECT_THAT(error({{"layer_types", sliding}}, "qwen2"), HasSubstr("no sliding window"));
  EXPECT_THAT(error({{"layer_types", {"full_attention"}}}), HasSubstr("layer_types"));
  EXPECT_THAT(error({{"layer_types", "full_attention"}}), HasSubstr("layer_types"));
}

TEST(HfConfig, Qwen3) {
  const DecoderConfig c = good({{"attention_bias", true}}, "qwen3");
  EXPECT_EQ(c.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.names.q_norm, "self_attn.q_norm");
  EXPECT_TRUE(c.qkv_bias && c.o_bias && !c.mlp_bias);
}

TEST(HfConfig, Gemma3) {
  const DecoderConfig c = good({{"query_pre_attn_scalar", 16},
                                {"sliding_window", 8},
                                {"sliding_window_pattern", 2},
                                {"rope_theta", 5e5},
                                {"rope_local_base_freq", 100.0}},
                               "gemma3_text");
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.attention_scale, 0.25);
  EXPECT_EQ(c.embedding_scale, std::sqrt(32.0f));
  EXPECT_TRUE(c.one_plus_weight && c.tie_word_embeddings);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.window, 8);
  EXPECT_THAT(c.full_layers, ElementsAre(false, true, false));
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.local_rope->theta, 100);
  const json now = {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7.0}}},
                    {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  const DecoderConfig five = good({{"rope_parameters", now}}, "gemma3_text");
  EXPECT_EQ(five.rope.kind, RopeConfig::kLinear);
  EXPECT_EQ(five.rope.theta, 1e6);
  EXPECT_EQ(five.local_rope->theta, 7);
  EXPECT_THAT(
      error({{"rope_parameters", {{"rope_type", "default"}}}}, "gemma3_text"),
      HasSubstr("rope_parameters: {\"rope_type\":\"default\"}; allowed: an object of full"));
  EXPECT_THAT(error({{"hidden_activation", "gelu"}}, "gemma3_text"),
              HasSubstr("hidden_activation: \"gelu\"; allowed: gelu_new, gelu_pytorch_tanh"));
  EXPECT_THAT(error({{"final_logit_softcapping", 30.0}}, "gemma3_text"),
              HasSubstr("final_logit_softcapping: 30"));
}

TEST(HfConfig, Gpt2) {
  json object = {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_embd", 32},
                 {"n_layer", 3},         {"n_head", 4},       {"n_positions", 64}};
  const auto read = [&](const json& changes) {
    json all = object;
    all.update(changes);
    return parse_hf_config(all.dump(), "config.json");
  };
  const auto c = read(json::object());
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->intermediate_size, 128);
  EXPECT_EQ(c->max_positions, 64);
  EXPECT_EQ(c->norm, NormKind::kLayer);
  EXPECT_EQ(c->activation, Activation::kGeluTanh);
  EXPECT_TRUE(!c->gated && !c->rotary && c->tie_word_embeddings && c->names.transposed);
  EXPECT_EQ(read({{"activation_function", "relu"}})->activation, Activation::kRelu);
  for (const json& bad :
       {json{{"scale_attn_weights", false}}, json{{"scale_attn_by_inverse_layer_idx", true}},
        json{{"activation_function", "mish"}}, json{{"add_cross_attention", true}},
        json{{"n_embd", 30}}, json{{"n_positions", 0}}}) {
    EXPECT_THAT(std::string(read(bad).status().message()), HasSubstr(bad.begin().key() + ": "));
  }
}

TEST(HfConfig, Phi3) {
  const DecoderConfig c = good({{"sliding_window", 16}}, "phi3");
  EXPECT_TRUE(c.fused_qkv());
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.window, 16);
  EXPECT_EQ(good({}, "phi3").window, 0);
  EXPECT_THAT(error({{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1}}}}}, "phi3"),
              HasSubstr("rope_scaling.short_factor: [1]; allowed: a list of 4 numbers"));
}

TEST(HfConfig, Starcoder2) {
  const DecoderConfig c = good({{"norm_epsilon", 1e-6}}, "starcoder2");
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_FALSE(c.gated);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias && c.tie_word_embeddings);
  EXPECT_FALSE(good({{"use_bias", false}}, "starcoder2").o_bias);
  EXPECT_EQ(good({{"sliding_window", 16}}, "starcoder2").window, 16);
  EXPECT_THAT(error({{"hidden_act", "silu"}}, "starcoder2"),
              HasSubstr("hidden_act: \"silu\"; allowed: gelu_new"));
}

TEST(HfConfig, Falcon) {
  const json object = {{"model_type", "falcon"}, {"vocab_size", 100},        {"hidden_size", 32},
                       {"num_hidden_layers", 3}, {"num_attention_heads", 4}, {"num_kv_heads", 2}};
  const auto read = [&](const json& changes) {
    json all = object;
    all.update(changes);
    return parse_hf_config(all.dump(), "config.json");
  };
  const auto first = read({{"num_kv_heads", 4}});  // 7B
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->kv_heads, 1);
  EXPECT_EQ(first->intermediate_size, 128);
  EXPECT_EQ(first->activation, Activation::kGelu);
  EXPECT_TRUE(first->parallel && !first->names.grouped && !first->qkv_bias && !first->gated);
  EXPECT_EQ(first->names.mlp_norm, "");
  const auto groups = read({{"new_decoder_architecture", true}});  // 40B
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->kv_heads, 2);
  EXPECT_TRUE(groups->parallel && groups->names.grouped);
  EXPECT_EQ(groups->names.mlp_norm, "ln_mlp");
  const auto one_norm = read({{"new_decoder_architecture", true}, {"num_ln_in_parallel_attn", 1}});
  ASSERT_TRUE(one_norm.ok()) << one_norm.status();
  EXPECT_EQ(one_norm->names.attention_norm, "input_layernorm");
  EXPECT_EQ(one_norm->names.mlp_norm, "");
  const auto serial = read({{"num_kv_heads", nullptr},
                            {"multi_query", false},
                            {"parallel_attn", false},
                            {"bias", true}});
  ASSERT_TRUE(serial.ok()) << serial.status();
  EXPECT_EQ(serial->kv_heads, 4);
  EXPECT_TRUE(!serial->parallel && serial->names.grouped && serial->mlp_bias);
  EXPECT_EQ(serial->names.mlp_norm, "post_attention_layernorm");
  for (const json& bad :
       {json{{"alibi", true}}, json{{"activation", "mish"}}, json{{"hidden_size", 36}},
        json{{"num_ln_in_parallel_attn", 2}}, json{{"num_kv_heads", 2}, {"multi_query", false}},
        json{{"num_kv_heads", 3}, {"new_decoder_architecture", true}},
        json{{"parallel_attn", false}, {"new_decoder_architecture", true}}}) {
    const std::string field = bad.contains("num_kv_heads")    ? "num_kv_heads"
                              : bad.contains("parallel_attn") ? "parallel_attn"
                                                              : bad.begin().key();
    EXPECT_THAT(std::string(read(bad).status().message()), HasSubstr(field + ": "));
  }
}

TEST(HfConfig, T5) {
  const json object = {{"model_type", "t5"}, {"vocab_size", 100}, {"d_model", 32}, {"d_kv", 8},
                       {"d_ff", 64},         {"num_layers", 3},   {"num_heads", 4}};
  const auto read = [&](const json& changes) {
    json all = object;
    all.update(changes);
    return parse_hf_config(all.dump(), "config.json");
  };
  const auto first = read({{"num_decoder_layers", 2}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->layers, 2);
  EXPECT_TRUE(first->has_cross_attention() && !first->gated && !first->rotary);
  EXPECT_EQ(first->activation, Activation::kRelu);
  EXPECT_EQ(first->attention_scale, 1);
  EXPECT_EQ(first->distance_buckets, 32);
  EXPECT_EQ(first->max_distance, 128);
  EXPECT_DOUBLE_EQ(first->output_scale, 1 / std::sqrt(32.0));
  EXPECT_TRUE(first->tie_word_embeddings);
  EXPECT_EQ(first->start_token, 0);
  EXPECT_EQ(first->encoder->layers, 3);
  EXPECT_FALSE(first->encoder->has_cross_attention());
  EXPECT_EQ(first_layers(*first, 1).encoder->layers, 3);

  const auto later = read({{"feed_forward_proj", "gated-gelu"},
                           {"dense_act_fn", "gelu_new"},
                           {"is_gated_act", true},
                           {"tie_word_embeddings", false},
                           {"decoder_start_token_id", 7}});
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_TRUE(later->gated);
  EXPECT_EQ(later->activation, Activation::kGeluTanh);
  EXPECT_EQ(later->output_scale, 1);
  EXPECT_FALSE(later->tie_word_embeddings);
  EXPECT_EQ(later->start_token, 7);
  // Written by Transformers 5, which ties heads if the file has no other.
  EXPECT_EQ(read({{"tie_word_embeddings", true}, {"scale_decoder_outputs", false}})->output_scale,
            1);
  const auto mt5 = read({{"model_type", "mt5"}});
  ASSERT_TRUE(mt5.ok()) << mt5.status();
  EXPECT_TRUE(mt5->gated);
  EXPECT_EQ(mt5->output_scale, 1);

  for (const json& bad :
       {json{{"feed_forward_proj", "gated-mish"}}, json{{"dense_act_fn", "gelu"}},
        json{{"is_gated_act", true}}, json{{"relative_attention_num_buckets", 6}},
        json{{"relative_attention_max_distance", 16}}, json{{"is_encoder_decoder", false}},
        json{{"decoder_start_token_id", 100}}, json{{"d_kv", 0}},
        json{{"num_decoder_layers", 0}}}) {
    EXPECT_THAT(std::string(read(bad).status().message()), HasSubstr(bad.begin().key() + ": "));
  }
  EXPECT_THAT(error({{"is_encoder_decoder", true}}), HasSubstr("allowed: false or null"));
}

// As T5Attention._relative_position_bucket computes them.
TEST(HfConfig, DistanceBuckets) {
  constexpr int kDistances[] = {-200, -128, -127, -100, -64, -50, -33, -16, -15, -9,  -8, -7,
                                -1,   0,    1,    7,    8,   9,   16,  40,  127, 128, 500};
  std::vector<int> both, before, narrow;
  for (const int d : kDistances) {
    both.push_back(distance_bucket(d, true, 32, 128));
    before.push_back(distance_bucket(d, false, 32, 128));
    narrow.push_back(distance_bucket(d, false, 16, 40));
  }
  EXPECT_THAT(both, ElementsAre(15, 15, 15, 15, 14, 13, 12, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 24,
                                26, 28, 31, 31, 31));
  EXPECT_THAT(before, ElementsAre(31, 31, 31, 30, 26, 24, 21, 16, 15, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0,
                                  0, 0, 0, 0));
  EXPECT_THAT(narrow, ElementsAre(15, 15, 15, 15, 15, 15, 15, 11, 11, 8, 8, 7, 1, 0, 0, 0, 0, 0, 0,
                                  0, 0, 0, 0));
}

TEST(HfConfig, BidirectionalGemma3) {
  const DecoderConfig c = good({{"architectures", {"Gemma3TextModel"}},
                                {"use_bidirectional_attention", true},
                                {"sliding_window", 512},
                                {"sliding_window_pattern", 2}},
                               "gemma3_text");
  EXPECT_TRUE(c.bidirectional && c.headless);
  EXPECT_EQ(c.window, 257) << "a row sees 256 on either side";
  EXPECT_THAT(c.full_layers, ElementsAre(false, true, false));
  EXPECT_FALSE(good({{"use_bidirectional_attention", false}}, "gemma3_text").bidirectional);
  EXPECT_THAT(error({{"use_bidirectional_attention", true}}),
              HasSubstr("use_bidirectional_attention: true; allowed: false or null"));
}

TEST(HfConfig, FilesOfTheBaseModel) {
  for (const auto& [type, name] : {std::pair{"llama", "LlamaModel"},
                                   {"mistral", "MistralModel"},
                                   {"qwen2", "Qwen2Model"},
                                   {"qwen3", "Qwen3Model"}}) {
    const DecoderConfig c = good({{"architectures", {name}}, {"tie_word_embeddings", false}}, type);
    EXPECT_TRUE(c.headless && c.tie_word_embeddings) << name;
  }
  EXPECT_FALSE(good({}).headless);
  EXPECT_THAT(error({{"architectures", {"LlamaModel"}}}, "qwen3"), HasSubstr("architectures"));
}

TEST(HfConfig, UnknownArchitectures) {
  EXPECT_EQ(error({{"model_type", "mamba"}}),
            "config.json: model_type: \"mamba\"; allowed: llama, mistral, qwen2, qwen3, "
            "gemma3_text, gpt2, phi3, falcon, t5, mt5, starcoder2");
  EXPECT_THAT(error({{"model_type", nullptr}}), HasSubstr("model_type: missing"));
  EXPECT_THAT(error({{"architectures", {"LlamaForSequenceClassification"}}}),
              HasSubstr("architectures: [\"LlamaForSequenceClassification\"]; allowed: "
                        "[\"LlamaForCausalLM\"] for model_type llama"));
  EXPECT_THAT(error({{"architectures", {"LlamaForCausalLM"}}}, "mistral"),
              HasSubstr("allowed: [\"MistralForCausalLM\"]"));
}

TEST(HfConfig, RejectsUnsupportedSettings) {
  EXPECT_THAT(error({{"quantization_config", {{"quant_method", "awq"}}}}),
              HasSubstr("quantization_config: {\"quant_method\":\"awq\"}; allowed: none, or "
                        "quant_method gptq or compressed-tensors of 4 bits"));
  const std::vector<std::pair<const char*, json>> fields = {{"pretraining_tp", 2},
                                                            {"partial_rotary_factor", 0.5},
                                                            {"attn_logit_softcapping", 50.0},
                                                            {"final_logit_softcapping", 30.0},
                                                            {"logits_scaling", 8.0},
                                                            {"embedding_multiplier", 12},
                                                            {"num_local_experts", 8},
                                                            {"use_qk_norm", true},
                                                            {"is_causal", false},
                                                            {"residual_multiplier", "x"}};
  for (const auto& [field, value] : fields) {
    EXPECT_THAT(error({{field, value}}), HasSubstr(std::string(field) + ": ")) << field;
    EXPECT_TRUE(with({{field, nullptr}}).ok()) << field;
  }
  EXPECT_TRUE(with({{"pretraining_tp", 1}, {"use_qk_norm", false}, {"is_causal", true}}).ok());
  EXPECT_THAT(error({{"is_causal", false}}), HasSubstr("is_causal: false; allowed: true or null"));
  EXPECT_THAT(error({{"hidden_act", "gelu"}}),
              HasSubstr("hidden_act: \"gelu\"; allowed: silu, swish"));
  EXPECT_THAT(error({{"torch_dtype", "int8"}}),
              HasSubstr("torch_dtype: \"int8\"; allowed: float32"));
}

TEST(HfConfig, Ranges) {
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads"}) {
    for (const json& value : {json(0), json(-1), json(2.0), json("3"), json(true), json(1LL << 40),
                              json(18446744073709551615ULL)}) {
      EXPECT_THAT(error({{field, value}}), HasSubstr(std::string(field) + ": ")) << field << value;
    }
    EXPECT_THAT(error({{field, nullptr}}), HasSubstr(std::string(field) + ": missing"));
  }
  EXPECT_THAT(error({{"num_hidden_layers", 1001}}), HasSubstr("allowed: integers from 1 to 1000"));
  EXPECT_THAT(error({{"num_key_value_heads", 3}}),
              HasSubstr("num_key_value_heads: 3; allowed: divisors of num_attention_heads"));
  EXPECT_THAT(error({{"num_key_value_heads", 0}}), HasSubstr("num_key_value_heads: 0"));
  EXPECT_THAT(error({{"hidden_size", 34}}),
              HasSubstr("hidden_size: 34; allowed: multiples of num_attention_heads, which is 4"));
  EXPECT_EQ(good({{"hidden_size", 34}, {"head_dim", 16}}).head_dim, 16);
  EXPECT_THAT(error({{"head_dim", 7}}), HasSubstr("head_dim: 7; allowed: even numbers"));
  EXPECT_THAT(error({{"head_dim", 0}}), HasSubstr("head_dim: 0"));
  EXPECT_THAT(error({{"rms_norm_eps", -1e-5}}), HasSubstr("rms_norm_eps: -1e-05"));
  EXPECT_THAT(error({{"max_position_embeddings", 0}}), HasSubstr("max_position_embeddings: 0"));
  EXPECT_THAT(error({{"eos_token_id", -1}}), HasSubstr("eos_token_id: -1"));
  EXPECT_THAT(error({{"bos_token_id", {1, 2}}}), HasSubstr("bos_token_id: [1,2]; allowed: one"));
  EXPECT_THAT(error({{"tie_word_embeddings", 1}}), HasSubstr("allowed: true, false"));
}

TEST(HfConfig, Files) {
  const test::TempDir dir;
  const auto missing = load_hf_config(dir.path());
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(dir.path() + "/config.json"));
  dir.write("config.json", base().dump());
  EXPECT_TRUE(load_hf_config(dir.path()).ok());
  dir.write("config.json", base().dump().substr(0, 40));
  EXPECT_THAT(std::string(load_hf_config(dir.path()).status().message()),
              HasSubstr("/config.json: not JSON at byte"));
  dir.write("config.json", "{\"vocab_size\":1,\"vocab_size\":2}");
  EXPECT_THAT(std::string(load_hf_config(dir.path()).status().message()),
              HasSubstr("\"vocab_size\": duplicate key"));
}

}  // namespace
}  // namespace tandem
