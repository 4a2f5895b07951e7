// Gemma 3, text only. Transformers: modeling_gemma3.py
//
// Embeddings are scaled by sqrt(hidden size). Norms multiply with 1 + weight, are applied before
// and after attention and MLP, and to each query and key head. The MLP is gated with tanh GELU. For
// each layer with global attention there are five with a sliding window and their own rotary base.
// EmbeddingGemma's attention is bidirectional.
#include <cmath>

#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_gemma3(const HfFile& file, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  TANDEM_RETURN_IF_ERROR(read_sizes(file,
                                    {.kv_heads = 4,
                                     .head_dim = 256,
                                     .max_positions = 131072,
                                     .activation_field = "hidden_activation",
                                     .activation = Activation::kGeluTanh},
                                    c));
  read_rope_by_layers(file, {.full = 1e6, .local = 1e4}, c);
  const int64_t pattern = fields.integer("sliding_window_pattern", 6, 1, 1000);
  read_windows(file, {.window = 4096, .full_every = static_cast<int>(pattern)}, c);
  c.bidirectional = fields.boolean("use_bidirectional_attention", false);
  // The file has the width of both sides.
  if (c.bidirectional && c.window > 0) c.window = c.window / 2 + 1;
  c.one_plus_weight = true;
  // Rounded to fp32, as Transformers' buffer is.
  c.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(c.hidden_size)));
  c.attention_scale = 1 / std::sqrt(fields.number("query_pre_attn_scalar", 256, 1e-6, 1e6));
  c.qkv_bias = c.o_bias = fields.boolean("attention_bias", false);
  c.tie_word_embeddings = true;  // default
  c.names.q_norm = "self_attn.q_norm";
  c.names.k_norm = "self_attn.k_norm";
  c.names.attention_output_norm = "post_attention_layernorm";
  c.names.mlp_norm = "pre_feedforward_layernorm";
  c.names.mlp_output_norm = "post_feedforward_layernorm";
  return absl::OkStatus();
}

}  // namespace

const Architecture kGemma3{.model_type = "gemma3_text",
                           .name = "Gemma3ForCausalLM",
                           .read = read_gemma3,
                           .base_name = "Gemma3TextModel",
                           .reads_bidirectional = true};

}  // namespace tandem
