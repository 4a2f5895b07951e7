#include "engine/backend/torch/weights/gguf/names.h"

#include <array>

namespace tandem {
namespace {

using Part = GgufArch::Part;

constexpr Part kLlamaParts[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr Part kLlamaLayer[] = {
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};
constexpr Part kGemmaLayer[] = {{"post_attention_norm", "post_attention_layernorm"},
                                {"ffn_norm", "pre_feedforward_layernorm"},
                                {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr Part kPhi3Layer[] = {
    {"attn_qkv", "self_attn.qkv_proj"}, {"attn_output", "self_attn.o_proj"},
    {"attn_norm", "input_layernorm"},   {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},     {"ffn_down", "mlp.down_proj"}};
constexpr Part kGpt2Parts[] = {{"token_embd", "wte"},
                               {"position_embd", "wpe"},
                               {"output_norm", "ln_f"},
                               {"output", "lm_head"}};
constexpr Part kGpt2Layer[] = {{"attn_norm", "ln_1"},          {"attn_qkv", "attn.c_attn"},
                               {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
                               {"ffn_up", "mlp.c_fc"},         {"ffn_down", "mlp.c_proj"}};
constexpr Part kFalconParts[] = {
    {"token_embd", "word_embeddings"}, {"output_norm", "ln_f"}, {"output", "lm_head"}};
constexpr Part kFalconLayer[] = {{"attn_norm", "input_layernorm"},
                                 {"attn_norm_2", "ln_attn"},
                                 {"attn_qkv", "self_attention.query_key_value"},
                                 {"attn_output", "self_attention.dense"},
                                 {"ffn_up", "mlp.dense_h_to_4h"},
                                 {"ffn_down", "mlp.dense_4h_to_h"}};
constexpr Part kT5Parts[] = {{"token_embd", "shared"},
                             {"enc.output_norm", "encoder.final_layer_norm"},
                             {"dec.output_norm", "decoder.final_layer_norm"},
                             {"output", "lm_head"}};
constexpr Part kT5EncoderLayer[] = {{"attn_norm", "layer.0.layer_norm"},
                                    {"attn_q", "layer.0.SelfAttention.q"},
                                    {"attn_k", "layer.0.SelfAttention.k"},
                                    {"attn_v", "layer.0.SelfAttention.v"},
                                    {"attn_o", "layer.0.SelfAttention.o"},
                                    {"attn_rel_b", "layer.0.SelfAttention.relative_attention_bias"},
                                    {"ffn_norm", "layer.1.layer_norm"},
                                    {"ffn_gate", "layer.1.DenseReluDense.wi_0"},
                                    {"ffn_up", "layer.1.DenseReluDense.wi"},
                                    {"ffn_down", "layer.1.DenseReluDense.wo"}};
constexpr Part kT5DecoderLayer[] = {
    {"cross_attn_norm", "layer.1.layer_norm"},
    {"cross_attn_q", "layer.1.EncDecAttention.q"},
    {"cross_attn_k", "layer.1.EncDecAttention.k"},
    {"cross_attn_v", "layer.1.EncDecAttention.v"},
    {"cross_attn_o", "layer.1.EncDecAttention.o"},
    {"cross_attn_rel_b", "layer.1.EncDecAttention.relative_attention_bias"},
    {"ffn_norm", "layer.2.layer_norm"},
    {"ffn_gate", "layer.2.DenseReluDense.wi_0"},
    {"ffn_up", "layer.2.DenseReluDense.wi"},
    {"ffn_down", "layer.2.DenseReluDense.wo"}};

constexpr GgufArch llama_like(const char* gguf, const char* model_type, const char* name) {
  return {.gguf = gguf,
          .model_type = model_type,
          .name = name,
          .parts = kLlamaParts,
          .layer_parts = kLlamaLayer,
          .hf_layer = "model.layers."};
}

constexpr std::array<GgufArch, 9> kArchs = [] {
  GgufArch llama = llama_like("llama", "llama", "LlamaForCausalLM");
  llama.permuted = true;
  GgufArch gemma3 = llama_like("gemma3", "gemma3_text", "Gemma3ForCausalLM");
  gemma3.norms_plus_1 = true;
  gemma3.more_layer_parts = kGemmaLayer;
  GgufArch embedding_gemma = gemma3;
  embedding_gemma.gguf = kEmbeddingGemma;
  embedding_gemma.name = "Gemma3TextModel";
  GgufArch phi3 = llama_like("phi3", "phi3", "Phi3ForCausalLM");
  phi3.layer_parts = kPhi3Layer;
  const GgufArch gpt2{.gguf = "gpt2",
                      .model_type = "gpt2",
                      .name = "GPT2LMHeadModel",
                      .rms = false,
                      .parts = kGpt2Parts,
                      .layer_parts = kGpt2Layer,
                      .hf_layer = "h."};
  const GgufArch falcon{.gguf = "falcon",
                        .model_type = "falcon",
                        .name = "FalconForCausalLM",
                        .rms = false,
                        .parts = kFalconParts,
                        .layer_parts = kFalconLayer,
                        .hf_layer = "h."};
  const GgufArch t5{.gguf = "t5",
                    .model_type = "t5",
                    .name = "T5ForConditionalGeneration",
                    .parts = kT5Parts,
                    .layer_parts = kT5EncoderLayer,
                    .more_layer_parts = kT5DecoderLayer,
                    .hf_layer = "decoder.block.",
                    .layer = "dec.blk.",
                    .encoder_parts = kT5EncoderLayer,
                    .hf_encoder_layer = "encoder.block.",
                    .encoder_layer = "enc.blk."};
  return std::array{llama,
                    llama_like("qwen2", "qwen2", "Qwen2ForCausalLM"),
                    llama_like("qwen3", "qwen3", "Qwen3ForCausalLM"),
                    gemma3,
                    embedding_gemma,
                    phi3,
                    gpt2,
                    falcon,
                    t5};
}();

std::string_view find(std::span<const Part> parts, std::string_view name) {
  for (const Part& p : parts) {
    if (p.gguf == name) return p.hf;
  }
  return "";
}

}  // namespace

std::span<const GgufArch> gguf_archs() { return kArchs; }

std::string gguf_hf_name(const GgufArch& arch, std::string_view part, const GgufVariant& variant) {
  const bool encoder = !arch.encoder_parts.empty() && part.starts_with(arch.encoder_layer);
  const std::string_view prefix = encoder ? arch.encoder_layer : arch.layer;
  if (!part.starts_with(prefix)) return std::string(find(arch.parts, part));
  part.remove_prefix(prefix.size());
  const size_t dot = part.find('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view number = part.substr(0, dot);
  const bool digits = !number.empty() && number.size() <= 4 &&
                      number.find_first_not_of("0123456789") == std::string_view::npos &&
                      (number == "0" || number[0] != '0');
  if (!digits) return "";
  part.remove_prefix(dot + 1);
  std::string inner(encoder ? find(arch.encoder_parts, part) : find(arch.more_layer_parts, part));
  if (inner.empty() && !encoder) inner = find(arch.layer_parts, part);
  if (inner.empty()) return "";
  if (variant.two_norms && inner == "input_layernorm") inner = "ln_mlp";  // Falcon 40B
  if (variant.gated && inner.ends_with(".wi")) inner += "_1";
  return std::string(encoder ? arch.hf_encoder_layer : arch.hf_layer) + std::string(number) + "." +
         inner;
}

}  // namespace tandem
