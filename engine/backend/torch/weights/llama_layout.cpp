#include "engine/backend/torch/weights/llama_layout.h"

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// Files of 2023 and before hold this buffer, which follows from the config.
bool rotary_buffer(const std::string& name) { return absl::EndsWith(name, "rotary_emb.inv_freq"); }

bool same_values(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes) == 0;
}

}  // namespace

std::vector<TensorSpec> llama_tensors(const HfConfig& config, bool tied) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t q = int64_t{config.heads} * config.head_dim;
  const int64_t kv = int64_t{config.kv_heads} * config.head_dim;
  std::vector<TensorSpec> specs;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    specs.push_back({name + ".weight", {out, in}});
    if (bias) specs.push_back({name + ".bias", {out}});
  };
  linear("model.embed_tokens", config.vocab_size, hidden, false);
  for (int i = 0; i < config.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    specs.push_back({layer + "input_layernorm.weight", {hidden}});
    linear(layer + "self_attn.q_proj", q, hidden, config.qkv_bias);
    linear(layer + "self_attn.k_proj", kv, hidden, config.qkv_bias);
    linear(layer + "self_attn.v_proj", kv, hidden, config.qkv_bias);
    linear(layer + "self_attn.o_proj", hidden, q, config.o_bias);
    specs.push_back({layer + "post_attention_layernorm.weight", {hidden}});
    linear(layer + "mlp.gate_proj", inner, hidden, config.mlp_bias);
    linear(layer + "mlp.up_proj", inner, hidden, config.mlp_bias);
    linear(layer + "mlp.down_proj", hidden, inner, config.mlp_bias);
  }
  specs.push_back({"model.norm.weight", {hidden}});
  if (!tied) linear("lm_head", config.vocab_size, hidden, false);
  return specs;
}

absl::StatusOr<LlamaLayout> check_llama_checkpoint(const HfConfig& config,
                                                   const Checkpoint& checkpoint) {
  const TensorView* head = checkpoint.find(kHead);
  const TensorView* embedding = checkpoint.find(kEmbedding);
  LlamaLayout layout;
  layout.tied = config.tie_word_embeddings &&
                (head == nullptr || embedding == nullptr || same_values(*head, *embedding));
  const std::vector<TensorSpec> specs = llama_tensors(config, layout.tied);
  TANDEM_RETURN_IF_ERROR(checkpoint.check(specs, [&](const std::string& name) {
    return rotary_buffer(name) || (layout.tied && name == kHead);
  }));
  for (const TensorSpec& spec : specs) layout.parameters += checkpoint.find(spec.name)->elements();
  return layout;
}

}  // namespace tandem
