#include "engine/backend/torch/model/llama.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

int64_t bytes_of(const at::Tensor& t) {
  return t.defined() ? t.numel() * static_cast<int64_t>(t.element_size()) : 0;
}

// In what an embedding is kept that is not tied to a head. Int8 is for products: a table keeps the
// file's numbers.
at::ScalarType embedding_type(const WeightStore& store, const HfConfig& c) {
  if (!store.device.is_cpu()) return store.rows();
  switch (store.dtype) {
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kInt8:
      return c.dtype == SafeDType::kBF16  ? at::kBFloat16
             : c.dtype == SafeDType::kF16 ? at::kHalf
                                          : at::kFloat;
    default:
      return store.rows();
  }
}

}  // namespace

int64_t LlamaWeights::bytes() const {
  int64_t n = bytes_of(final_norm) + head.bytes() + (tied ? 0 : bytes_of(embedding));
  for (const Layer& l : layers) {
    n += bytes_of(l.attention_norm) + bytes_of(l.mlp_norm);
    for (const Linear* w : {&l.qkv, &l.o, &l.gate_up, &l.down}) n += w->bytes();
  }
  return n;
}

int64_t LlamaWeights::parameters() const {
  int64_t n = final_norm.numel() + head.parameters() + (tied ? 0 : embedding.numel());
  for (const Layer& l : layers) {
    n += l.attention_norm.numel() + l.mlp_norm.numel();
    for (const Linear* w : {&l.qkv, &l.o, &l.gate_up, &l.down}) n += w->parameters();
  }
  return n;
}

absl::StatusOr<LlamaWeights> LlamaWeights::load(const HfConfig& c, bool tied,
                                                const TensorSource& source,
                                                const WeightStore& store,
                                                const std::function<void(int)>& progress) {
  const int64_t hidden = c.hidden_size;
  const int64_t inner = c.intermediate_size;
  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  const auto norm = [&](const std::string& name) {
    return load_stacked(source, {name + ".weight"}, {{hidden}}, store.residual(), store.device);
  };
  // The layers of these names side by side: one product instead of several.
  const auto linear = [&](const std::string& prefix, const std::vector<std::string>& names,
                          const std::vector<int64_t>& outs, int64_t in, bool bias,
                          cpu::Layout layout = cpu::Layout::kInOrder) {
    return Linear::load(source, store, prefix, names, outs, in, bias, layout);
  };
  LlamaWeights w;
  w.store = store;
  w.tied = tied;
  for (int i = 0; i < c.layers; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    Layer& l = w.layers.emplace_back();
    TANDEM_ASSIGN_OR_RETURN(l.attention_norm, norm(prefix + "input_layernorm"));
    TANDEM_ASSIGN_OR_RETURN(
        l.qkv, linear(attention, {"q_proj", "k_proj", "v_proj"}, {q, kv, kv}, hidden, c.qkv_bias));
    TANDEM_ASSIGN_OR_RETURN(l.o, linear(attention, {"o_proj"}, {hidden}, q, c.o_bias));
    TANDEM_ASSIGN_OR_RETURN(l.mlp_norm, norm(prefix + "post_attention_layernorm"));
    TANDEM_ASSIGN_OR_RETURN(l.gate_up, linear(mlp, {"gate_proj", "up_proj"}, {inner, inner}, hidden,
                                              c.mlp_bias, cpu::Layout::kPairs));
    TANDEM_ASSIGN_OR_RETURN(l.down, linear(mlp, {"down_proj"}, {hidden}, inner, c.mlp_bias));
    if (progress) progress(i + 1);
  }
  TANDEM_ASSIGN_OR_RETURN(w.final_norm, norm("model.norm"));
  if (tied) {
    TANDEM_ASSIGN_OR_RETURN(w.head,
                            linear("model.", {"embed_tokens"}, {c.vocab_size}, hidden, false));
    w.embedding = w.head.weight();
  } else {
    TANDEM_ASSIGN_OR_RETURN(
        w.embedding, load_stacked(source, {"model.embed_tokens.weight"}, {{c.vocab_size, hidden}},
                                  embedding_type(store, c), store.device));
    TANDEM_ASSIGN_OR_RETURN(w.head, linear("", {"lm_head"}, {c.vocab_size}, hidden, false));
  }
  return w;
}

Llama::Llama(std::string name, const HfConfig& c, LlamaWeights weights, at::ScalarType kv_type)
    : config_(c), weights_(std::move(weights)) {
  const at::ScalarType type = weights_.store.rows();
  const at::ScalarType residual = weights_.store.residual();
  const at::Device device = weights_.store.device;
  geometry_ = {c.layers, c.kv_heads, c.head_dim, c.hidden_size, kv_type, residual};
  shape_.name = std::move(name);
  shape_.architecture = c.architecture;
  shape_.dtype = dtype_name(weights_.store.dtype);
  shape_.vocab_size = c.vocab_size;
  shape_.layers = c.layers;
  shape_.hidden_size = c.hidden_size;
  shape_.max_positions = c.max_positions;
  shape_.window = c.window;
  shape_.weight_bytes = weights_.bytes();
  shape_.parameters = weights_.parameters();
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
  if (weights_.embedding.defined()) {
    ops::embed(x, weights_.embedding, token);
  } else {
    weights_.head.look_up(x, token);
  }
}

void Llama::run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool) {
  const int64_t n = rows.rows;
  const double scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  at::Tensor& normed = normed_.rows(n);
  at::Tensor& qkv = qkv_.rows(n);
  at::Tensor& attended = attended_.rows(n);
  at::Tensor& gated = gated_.rows(n);
  at::Tensor& projected = projected_.rows(n);
  for (int i = from; i < to; ++i) {
    const auto layer = static_cast<size_t>(i);
    const LlamaWeights::Layer& l = weights_.layers[layer];
    const LayerKv kv{config_.heads, config_.kv_heads, config_.head_dim, pool.layer_keys[layer],
                     pool.layer_values[layer]};
    l.qkv.into(qkv, {x, l.attention_norm, config_.rms_norm_eps, normed});
    ops::rope_and_store(qkv, rows, kv, rope_);
    ops::attention(attended, qkv, rows, kv, scale);
    l.o.add_to(x, attended, projected);

    l.gate_up.gate_into(gated, {x, l.mlp_norm, config_.rms_norm_eps, normed}, gate_up_);
    l.down.add_to(x, gated, projected);
  }
}

void Llama::head(at::Tensor& logits, const at::Tensor& hidden) {
  const StepProfile::Section section(StepProfile::kHead);
  const int64_t n = hidden.size(0);
  at::Tensor& normed = head_in_.rows(n);
  at::Tensor* scratch =
      logits.scalar_type() == normed.scalar_type() || normed.is_cpu() ? nullptr : &logits_.rows(n);
  weights_.head.into(logits, {hidden, weights_.final_norm, config_.rms_norm_eps, normed}, scratch);
}

}  // namespace tandem
