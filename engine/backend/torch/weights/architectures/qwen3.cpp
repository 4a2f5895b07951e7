// Qwen 3: Llama with an RMS norm of each query and key head before the rotary embedding.
// Transformers: modeling_qwen3.py
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_qwen3(const HfFile& file, DecoderConfig& c) {
  TANDEM_RETURN_IF_ERROR(
      read_sizes(file, {.kv_heads = 32, .head_dim = 128, .max_positions = 32768}, c));
  read_rope(file, c);
  read_windows(file, {.window = 4096, .asked_for = true}, c);
  c.qkv_bias = c.o_bias = file.fields.boolean("attention_bias", false);
  c.names.q_norm = "self_attn.q_norm";
  c.names.k_norm = "self_attn.k_norm";
  return absl::OkStatus();
}

}  // namespace

const Architecture kQwen3{"qwen3", "Qwen3ForCausalLM", read_qwen3};

}  // namespace tandem
