// Qwen 2 and 2.5: Llama with biases for queries, keys and values, and an optional sliding window
// for the upper layers. Transformers: modeling_qwen2.py
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_qwen2(const HfFile& file, DecoderConfig& c) {
  TANDEM_RETURN_IF_ERROR(read_sizes(file, {.kv_heads = 32, .max_positions = 32768}, c));
  read_rope(file, c);
  read_windows(file, {.window = 4096, .asked_for = true}, c);
  c.qkv_bias = true;
  return absl::OkStatus();
}

}  // namespace

const Architecture kQwen2{"qwen2", "Qwen2ForCausalLM", read_qwen2};

}  // namespace tandem
