#include "engine/backend/torch/weights/gguf_names.h"

#include <array>

namespace tandem {
namespace {

using Part = GgufArch::Part;

constexpr std::array<Part, 3> kLlamaParts{
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<Part, 11> kLlamaLayer{{{"attn_q", "self_attn.q_proj"},
                                            {"attn_k", "self_attn.k_proj"},
                                            {"attn_v", "self_attn.v_proj"},
                                            {"attn_output", "self_attn.o_proj"},
                                            {"attn_q_norm", "self_attn.q_norm"},
                                            {"attn_k_norm", "self_attn.k_norm"},
                                            {"attn_norm", "input_layernorm"},
                                            {"ffn_norm", "post_attention_layernorm"},
                                            {"ffn_gate", "mlp.gate_proj"},
                                            {"ffn_up", "mlp.up_proj"},
                                            {"ffn_down", "mlp.down_proj"}}};
constexpr std::array<Part, 13> kGemmaLayer{{{"attn_q", "self_attn.q_proj"},
                                            {"attn_k", "self_attn.k_proj"},
                                            {"attn_v", "self_attn.v_proj"},
                                            {"attn_output", "self_attn.o_proj"},
                                            {"attn_q_norm", "self_attn.q_norm"},
                                            {"attn_k_norm", "self_attn.k_norm"},
                                            {"attn_norm", "input_layernorm"},
                                            {"post_attention_norm", "post_attention_layernorm"},
                                            {"ffn_norm", "pre_feedforward_layernorm"},
                                            {"ffn_gate", "mlp.gate_proj"},
                                            {"ffn_up", "mlp.up_proj"},
                                            {"ffn_down", "mlp.down_proj"},
                                            {"post_ffw_norm", "post_feedforward_layernorm"}}};
constexpr std::array<Part, 6> kPhi3Layer{{{"attn_qkv", "self_attn.qkv_proj"},
                                          {"attn_output", "self_attn.o_proj"},
                                          {"attn_norm", "input_layernorm"},
                                          {"ffn_norm", "post_attention_layernorm"},
                                          {"ffn_up", "mlp.gate_up_proj"},
                                          {"ffn_down", "mlp.down_proj"}}};
constexpr std::array<Part, 4> kGpt2Parts{{{"token_embd", "wte"},
                                          {"position_embd", "wpe"},
                                          {"output_norm", "ln_f"},
                                          {"output", "lm_head"}}};
constexpr std::array<Part, 6> kGpt2Layer{{{"attn_norm", "ln_1"},
                                          {"attn_qkv", "attn.c_attn"},
                                          {"attn_output", "attn.c_proj"},
                                          {"ffn_norm", "ln_2"},
                                          {"ffn_up", "mlp.c_fc"},
                                          {"ffn_down", "mlp.c_proj"}}};
constexpr std::array<Part, 3> kFalconParts{
    {{"token_embd", "word_embeddings"}, {"output_norm", "ln_f"}, {"output", "lm_head"}}};
constexpr std::array<Part, 6> kFalconLayer{{{"attn_norm", "input_layernorm"},
                                            {"attn_norm_2", "ln_attn"},
                                            {"attn_qkv", "self_attention.query_key_value"},
                                            {"attn_output", "self_attention.dense"},
                                            {"ffn_up", "mlp.dense_h_to_4h"},
                                            {"ffn_down", "mlp.dense_4h_to_h"}}};

constexpr char kLayers[] = "model.layers.";
constexpr std::array<GgufArch, 7> kArchs{{{.gguf = "llama",
                                           .model_type = "llama",
                                           .name = "LlamaForCausalLM",
                                           .permuted = true,
                                           .parts = kLlamaParts,
                                           .layer_parts = kLlamaLayer,
                                           .hf_layer = kLayers},
                                          {.gguf = "qwen2",
                                           .model_type = "qwen2",
                                           .name = "Qwen2ForCausalLM",
                                           .parts = kLlamaParts,
                                           .layer_parts = kLlamaLayer,
                                           .hf_layer = kLayers},
                                          {.gguf = "qwen3",
                                           .model_type = "qwen3",
                                           .name = "Qwen3ForCausalLM",
                                           .parts = kLlamaParts,
                                           .layer_parts = kLlamaLayer,
                                           .hf_layer = kLayers},
                                          {.gguf = "gemma3",
                                           .model_type = "gemma3_text",
                                           .name = "Gemma3ForCausalLM",
                                           .norms_plus_1 = true,
                                           .parts = kLlamaParts,
                                           .layer_parts = kGemmaLayer,
                                           .hf_layer = kLayers},
                                          {.gguf = "phi3",
                                           .model_type = "phi3",
                                           .name = "Phi3ForCausalLM",
                                           .parts = kLlamaParts,
                                           .layer_parts = kPhi3Layer,
                                           .hf_layer = kLayers},
                                          {.gguf = "gpt2",
                                           .model_type = "gpt2",
                                           .name = "GPT2LMHeadModel",
                                           .rms = false,
                                           .parts = kGpt2Parts,
                                           .layer_parts = kGpt2Layer,
                                           .hf_layer = "h."},
                                          {.gguf = "falcon",
                                           .model_type = "falcon",
                                           .name = "FalconForCausalLM",
                                           .rms = false,
                                           .parts = kFalconParts,
                                           .layer_parts = kFalconLayer,
                                           .hf_layer = "h."}}};

std::string_view find(std::span<const Part> parts, std::string_view name) {
  for (const Part& p : parts) {
    if (p.gguf == name) return p.hf;
  }
  return "";
}

}  // namespace

std::span<const GgufArch> gguf_archs() { return kArchs; }

std::string gguf_hf_name(const GgufArch& arch, std::string_view part, bool two_norms) {
  if (part.substr(0, 4) != "blk.") return std::string(find(arch.parts, part));
  const size_t dot = part.find('.', 4);
  if (dot == std::string_view::npos) return "";
  const std::string_view number = part.substr(4, dot - 4);
  const bool digits = !number.empty() && number.size() <= 4 &&
                      number.find_first_not_of("0123456789") == std::string_view::npos &&
                      (number == "0" || number[0] != '0');
  if (!digits) return "";
  std::string_view inner = find(arch.layer_parts, part.substr(dot + 1));
  if (inner.empty()) return "";
  if (two_norms && inner == "input_layernorm") inner = "ln_mlp";  // Falcon 40B
  return std::string(arch.hf_layer) + std::string(number) + "." + std::string(inner);
}

}  // namespace tandem
