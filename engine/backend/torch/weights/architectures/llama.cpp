// Llama 2 and 3 and compatible models: the defaults of DecoderConfig. Transformers:
// modeling_llama.py
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_llama(const HfFile& file, DecoderConfig& c) {
  TANDEM_RETURN_IF_ERROR(read_sizes(file, {.max_positions = 2048}, c));
  read_rope(file, c);
  read_windows(file, {}, c);
  c.qkv_bias = c.o_bias = file.fields.boolean("attention_bias", false);
  c.mlp_bias = file.fields.boolean("mlp_bias", false);
  return absl::OkStatus();
}

}  // namespace

const Architecture kLlama{"llama", "LlamaForCausalLM", read_llama};

}  // namespace tandem
