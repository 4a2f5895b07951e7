// GPT-2: learned positions, layer norms, biases, a plain GELU MLP, and matrices stored as [in, out]
// (Conv1D). Transformers: modeling_gpt2.py
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Only default values are supported: others change what attention computes.
void refuse_variants(JsonFields& fields) {
  if (!fields.boolean("scale_attn_weights", true)) fields.refuse("scale_attn_weights", "true");
  if (fields.boolean("scale_attn_by_inverse_layer_idx", false)) {
    fields.refuse("scale_attn_by_inverse_layer_idx", "false");
  }
}

absl::Status read_gpt2(const HfFile& file, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  refuse_variants(fields);
  c.vocab_size = read_size(file, "vocab_size", std::nullopt, kMaxVocab);
  c.hidden_size = read_size(file, "n_embd", std::nullopt, kMaxWidth);
  c.layers = read_size(file, "n_layer", std::nullopt, kMaxLayers);
  c.heads = c.kv_heads = read_size(file, "n_head", std::nullopt, kMaxHeads);
  c.max_positions = read_size(file, "n_positions", 1024, kMaxPositions);
  c.intermediate_size = read_size(
      file, "n_inner", std::min<int64_t>(kMaxWidth, int64_t{4} * c.hidden_size), kMaxWidth);
  c.norm_eps = fields.number("layer_norm_epsilon", 1e-5, 0, 1);
  c.activation = read_activation(file, "activation_function", Activation::kGeluTanh);
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (c.hidden_size % c.heads != 0) {
    return out_of_range(absl::StrCat(file.name, ": n_embd"), c.hidden_size,
                        absl::StrCat("multiples of n_head, which is ", c.heads));
  }
  c.head_dim = c.hidden_size / c.heads;
  c.norm = NormKind::kLayer;
  c.gated = false;
  c.rotary = false;
  c.qkv_bias = c.o_bias = c.mlp_bias = true;
  c.tie_word_embeddings = true;  // default
  c.names = {.embedding = "wte",
             .positions = "wpe",
             .layer = "h.",
             .attention_norm = "ln_1",
             .qkv = {"attn.c_attn"},
             .o = "attn.c_proj",
             .mlp_norm = "ln_2",
             .up = {"mlp.c_fc"},
             .down = "mlp.c_proj",
             .final_norm = "ln_f",
             .transposed = true,
             .ignored = {".attn.bias", ".attn.masked_bias"},  // causal mask buffers of old files
             .prefix = "transformer."};
  return absl::OkStatus();
}

}  // namespace

const Architecture kGpt2{"gpt2", "GPT2LMHeadModel", read_gpt2};

}  // namespace tandem
