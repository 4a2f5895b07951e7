// Phi-3 and Phi-4-mini: Llama with fused matrices for queries, keys and values, and for gate and
// up. Transformers: modeling_phi3.py
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::Status read_phi3(const HfFile& file, DecoderConfig& c) {
  TANDEM_RETURN_IF_ERROR(read_sizes(file, {.norm_eps = 1e-5, .max_positions = 4096}, c));
  read_rope(file, c);
  read_windows(file, {.may = true}, c);
  c.names.qkv = {"self_attn.qkv_proj"};
  c.names.up = {"mlp.gate_up_proj"};
  return absl::OkStatus();
}

}  // namespace

const Architecture kPhi3{"phi3", "Phi3ForCausalLM", read_phi3};

}  // namespace tandem
