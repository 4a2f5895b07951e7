// Falcon: parallel attention and plain MLP, layer norms, and one fused matrix for queries, keys and
// values. Earlier models have one key head (7B) or one per query head (RW). Models with
// new_decoder_architecture have grouped heads, and one norm for both branches (11B) or one each
// (40B, 180B). Transformers: modeling_falcon.py
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_sizes(const HfFile& file, DecoderConfig& c) {
  c.vocab_size = read_size(file, "vocab_size", std::nullopt, kMaxVocab);
  c.hidden_size = read_size(file, "hidden_size", std::nullopt, kMaxWidth);
  c.layers = read_size(file, "num_hidden_layers", std::nullopt, kMaxLayers);
  c.heads = read_size(file, "num_attention_heads", std::nullopt, kMaxHeads);
  c.max_positions = read_size(file, "max_position_embeddings", 2048, kMaxPositions);
  c.intermediate_size = read_size(
      file, "ffn_hidden_size", std::min<int64_t>(kMaxWidth, int64_t{4} * c.hidden_size), kMaxWidth);
  TANDEM_RETURN_IF_ERROR(file.fields.status());
  if (c.hidden_size % (2 * c.heads) != 0) {
    return out_of_range(absl::StrCat(file.name, ": hidden_size"), c.hidden_size,
                        absl::StrCat("multiples of ", 2 * c.heads, ", twice num_attention_heads"));
  }
  c.head_dim = c.hidden_size / c.heads;
  return absl::OkStatus();
}

// Number of key heads and their order in the fused matrix.
absl::Status read_heads(const HfFile& file, bool new_decoder, DecoderConfig& c) {
  const bool one_key = file.fields.boolean("multi_query", true) && !new_decoder;
  const int kv_heads = read_size(file, "num_kv_heads", c.heads, kMaxHeads);
  TANDEM_RETURN_IF_ERROR(file.fields.status());
  c.kv_heads = one_key ? 1 : kv_heads;
  c.names.grouped = !one_key;
  if (c.heads % c.kv_heads != 0) {
    return out_of_range(absl::StrCat(file.name, ": num_kv_heads"), c.kv_heads,
                        absl::StrCat("divisors of num_attention_heads, which is ", c.heads));
  }
  if (!new_decoder && !one_key && c.kv_heads != c.heads) {
    return out_of_range(absl::StrCat(file.name, ": num_kv_heads"), c.kv_heads,
                        absl::StrCat(c.heads,
                                     ", as num_attention_heads, where neither "
                                     "new_decoder_architecture nor multi_query is set"));
  }
  return absl::OkStatus();
}

absl::Status read_falcon(const HfFile& file, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  TANDEM_RETURN_IF_ERROR(read_sizes(file, c));
  read_rope(file, c);
  const bool new_decoder = fields.boolean("new_decoder_architecture", false);
  c.parallel = fields.boolean("parallel_attn", true);
  if (new_decoder && !c.parallel) fields.refuse("parallel_attn", "true in the new decoder");
  // As in Transformers: two only with new_decoder_architecture.
  const int64_t norms =
      fields.integer("num_ln_in_parallel_attn", new_decoder ? 2 : 1, 1, new_decoder ? 2 : 1);
  c.names = {.embedding = "word_embeddings",
             .layer = "h.",
             .attention_norm = norms == 2 ? "ln_attn" : "input_layernorm",
             .qkv = {"self_attention.query_key_value"},
             .o = "self_attention.dense",
             .mlp_norm = norms == 2   ? "ln_mlp"
                         : c.parallel ? ""
                                      : "post_attention_layernorm",
             .up = {"mlp.dense_h_to_4h"},
             .down = "mlp.dense_4h_to_h",
             .final_norm = "ln_f",
             .prefix = "transformer."};
  TANDEM_RETURN_IF_ERROR(read_heads(file, new_decoder, c));
  c.norm = NormKind::kLayer;
  c.norm_eps = fields.number("layer_norm_epsilon", 1e-5, 0, 1);
  c.activation = read_activation(file, "activation", Activation::kGelu);
  c.gated = false;
  c.qkv_bias = c.o_bias = c.mlp_bias = fields.boolean("bias", false);
  c.tie_word_embeddings = true;  // default
  return absl::OkStatus();
}

}  // namespace

const Architecture kFalcon{"falcon", "FalconForCausalLM", read_falcon};

}  // namespace tandem
