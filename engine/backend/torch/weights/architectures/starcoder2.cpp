// StarCoder 2: Llama with layer norms, biases and a plain MLP. Transformers: modeling_starcoder2.py
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read(const HfFile& file, DecoderConfig& c) {
  TANDEM_RETURN_IF_ERROR(read_sizes(
      file, {.kv_heads = 2, .max_positions = 4096, .activation = Activation::kGeluTanh}, c));
  read_rope(file, c);
  read_windows(file, {.may = true}, c);
  c.norm = NormKind::kLayer;
  c.norm_eps = file.fields.number("norm_epsilon", 1e-5, 0, 1);
  c.gated = false;
  c.qkv_bias = c.o_bias = c.mlp_bias = file.fields.boolean("use_bias", true);
  c.tie_word_embeddings = true;  // default
  c.names.up = {"mlp.c_fc"};
  c.names.down = "mlp.c_proj";
  return absl::OkStatus();
}

}  // namespace

const Architecture kStarcoder2{"starcoder2", "Starcoder2ForCausalLM", read};

}  // namespace tandem
