#include "engine/backend/torch/model/llama.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

at::ScalarType residual_type(at::ScalarType product) {
  return product == at::kDouble ? at::kDouble : at::kFloat;
}

const char* type_name(at::ScalarType type) {
  return type == at::kDouble ? "fp64" : type == at::kBFloat16 ? "bf16" : "fp32";
}

int64_t bytes_of(const at::Tensor& t) {
  return t.defined() ? t.numel() * static_cast<int64_t>(t.element_size()) : 0;
}

// Loads the tensors of one model, prefix by prefix.
struct Loader {
  const TensorSource& source;
  at::ScalarType type;
  at::Device device;

  absl::StatusOr<at::Tensor> vector(const std::string& name, int64_t n, at::ScalarType t) const {
    return load_stacked(source, {name}, {{n}}, t, device);
  }

  // The layers of these names side by side: one product instead of several.
  absl::StatusOr<Linear> linear(const std::string& prefix, const std::vector<std::string>& names,
                                const std::vector<int64_t>& outs, int64_t in, bool bias) const {
    std::vector<std::string> weights, biases;
    std::vector<std::vector<int64_t>> weight_shapes, bias_shapes;
    for (size_t i = 0; i < names.size(); ++i) {
      weights.push_back(prefix + names[i] + ".weight");
      biases.push_back(prefix + names[i] + ".bias");
      weight_shapes.push_back({outs[i], in});
      bias_shapes.push_back({outs[i]});
    }
    Linear l;
    TANDEM_ASSIGN_OR_RETURN(l.weight, load_stacked(source, weights, weight_shapes, type, device));
    if (bias) {
      TANDEM_ASSIGN_OR_RETURN(l.bias, load_stacked(source, biases, bias_shapes, type, device));
    }
    return l;
  }
};

}  // namespace

int64_t LlamaWeights::bytes() const {
  int64_t n = bytes_of(embedding) + bytes_of(final_norm);
  if (!head.weight.is_alias_of(embedding)) n += bytes_of(head.weight);
  for (const Layer& l : layers) {
    n += bytes_of(l.attention_norm) + bytes_of(l.mlp_norm);
    for (const Linear* w : {&l.qkv, &l.o, &l.gate_up, &l.down}) {
      n += bytes_of(w->weight) + bytes_of(w->bias);
    }
  }
  return n;
}

absl::StatusOr<LlamaWeights> LlamaWeights::load(const HfConfig& c, bool tied,
                                                const TensorSource& source,
                                                at::ScalarType product_type, at::Device device,
                                                const std::function<void(int)>& progress) {
  const Loader loader{source, product_type, device};
  const at::ScalarType norm_type = residual_type(product_type);
  const int64_t hidden = c.hidden_size;
  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  LlamaWeights w;
  TANDEM_ASSIGN_OR_RETURN(
      w.embedding, load_stacked(source, {"model.embed_tokens.weight"}, {{c.vocab_size, hidden}},
                                product_type, device));
  for (int i = 0; i < c.layers; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    Layer& l = w.layers.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(l.attention_norm,
                            loader.vector(prefix + "input_layernorm.weight", hidden, norm_type));
    TANDEM_ASSIGN_OR_RETURN(l.qkv, loader.linear(attention, {"q_proj", "k_proj", "v_proj"},
                                                 {q, kv, kv}, hidden, c.qkv_bias));
    TANDEM_ASSIGN_OR_RETURN(l.o, loader.linear(attention, {"o_proj"}, {hidden}, q, c.o_bias));
    TANDEM_ASSIGN_OR_RETURN(
        l.mlp_norm, loader.vector(prefix + "post_attention_layernorm.weight", hidden, norm_type));
    TANDEM_ASSIGN_OR_RETURN(
        l.gate_up, loader.linear(mlp, {"gate_proj", "up_proj"},
                                 {c.intermediate_size, c.intermediate_size}, hidden, c.mlp_bias));
    TANDEM_ASSIGN_OR_RETURN(
        l.down, loader.linear(mlp, {"down_proj"}, {hidden}, c.intermediate_size, c.mlp_bias));
    if (progress) progress(i + 1);
  }
  TANDEM_ASSIGN_OR_RETURN(w.final_norm, loader.vector("model.norm.weight", hidden, norm_type));
  if (tied) {
    w.head.weight = w.embedding;
  } else {
    TANDEM_ASSIGN_OR_RETURN(w.head, loader.linear("", {"lm_head"}, {c.vocab_size}, hidden, false));
  }
  return w;
}

Llama::Llama(std::string name, const HfConfig& c, LlamaWeights weights)
    : config_(c), weights_(std::move(weights)) {
  const at::ScalarType type = weights_.embedding.scalar_type();
  const at::ScalarType residual = residual_type(type);
  const at::Device device = weights_.embedding.device();
  geometry_ = {c.layers, c.kv_heads, c.head_dim, c.hidden_size, type, residual};
  shape_.name = std::move(name);
  shape_.architecture = c.architecture;
  shape_.dtype = type_name(type);
  shape_.vocab_size = c.vocab_size;
  shape_.layers = c.layers;
  shape_.hidden_size = c.hidden_size;
  shape_.max_positions = c.max_positions;
  shape_.window = c.window;
  shape_.weight_bytes = weights_.bytes();
  const int64_t element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t norms = int64_t{2 * c.layers + 1} * c.hidden_size;
  const int64_t norm_bytes = norms * static_cast<int64_t>(c10::elementSize(residual));
  shape_.parameters = (shape_.weight_bytes - norm_bytes) / element + norms;
  rope_ = Rope(rope_inverse_frequencies(c.rope, c.head_dim), residual, device);

  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  normed_ = RowBuffer(c.hidden_size, type, device);
  qkv_ = RowBuffer(q + 2 * kv, type, device);
  attended_ = RowBuffer(q, type, device);
  gate_up_ = RowBuffer(int64_t{2} * c.intermediate_size, type, device);
  gated_ = RowBuffer(c.intermediate_size, type, device);
  projected_ = RowBuffer(c.hidden_size, type, device);
  head_in_ = RowBuffer(c.hidden_size, type, device);
  logits_ = RowBuffer(c.vocab_size, type, device);
}

void Llama::embed(at::Tensor& x, const int32_t* token, int max_position) {
  rope_.reach(max_position);
  ops::embed(x, weights_.embedding, token);
}

void Llama::run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool) {
  const int64_t n = rows.rows;
  const double scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  at::Tensor& normed = normed_.rows(n);
  at::Tensor& qkv = qkv_.rows(n);
  at::Tensor& attended = attended_.rows(n);
  at::Tensor& gate_up = gate_up_.rows(n);
  at::Tensor& gated = gated_.rows(n);
  at::Tensor& projected = projected_.rows(n);
  for (int i = from; i < to; ++i) {
    const auto layer = static_cast<size_t>(i);
    const LlamaWeights::Layer& l = weights_.layers[layer];
    const LayerKv kv{config_.heads, config_.kv_heads, config_.head_dim, pool.layer_keys[layer],
                     pool.layer_values[layer]};
    ops::rms_norm(normed, x, l.attention_norm, config_.rms_norm_eps);
    l.qkv.into(qkv, normed);
    ops::rope_and_store(qkv, rows, kv, rope_);
    ops::attention(attended, qkv, rows, kv, scale);
    l.o.add_to(x, attended, projected);

    ops::rms_norm(normed, x, l.mlp_norm, config_.rms_norm_eps);
    l.gate_up.into(gate_up, normed);
    ops::silu_mul(gated, gate_up);
    l.down.add_to(x, gated, projected);
  }
}

void Llama::head(at::Tensor& logits, const at::Tensor& hidden) {
  const StepProfile::Section section(StepProfile::kHead);
  const int64_t n = hidden.size(0);
  at::Tensor& normed = head_in_.rows(n);
  ops::rms_norm(normed, hidden, weights_.final_norm, config_.rms_norm_eps);
  at::Tensor* scratch =
      logits.scalar_type() == normed.scalar_type() || normed.is_cpu() ? nullptr : &logits_.rows(n);
  weights_.head.into(logits, normed, scratch);
}

}  // namespace tandem
