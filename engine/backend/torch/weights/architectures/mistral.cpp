// Mistral: Llama with a sliding window and without biases. Transformers: modeling_mistral.py
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_mistral(const HfFile& file, DecoderConfig& c) {
  TANDEM_RETURN_IF_ERROR(read_sizes(file, {.kv_heads = 8, .max_positions = 131072}, c));
  read_rope(file, c);
  read_windows(file, {.window = 4096}, c);
  return absl::OkStatus();
}

}  // namespace

const Architecture kMistral{"mistral", "MistralForCausalLM", read_mistral};

}  // namespace tandem
