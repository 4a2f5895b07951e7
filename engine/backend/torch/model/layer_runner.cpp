#include "engine/backend/torch/model/layer_runner.h"

#include <cmath>

namespace tandem {

LayerRunner::LayerRunner(const DecoderConfig& c, const WeightStore& store)
    : config_(c), ops_(store.ops()) {
  const at::ScalarType type = store.rows();
  const at::Device device = store.device;
  scale_ =
      c.attention_scale > 0 ? c.attention_scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  const auto rope = [&](const RopeConfig& r) {
    return Rope(rope_inverse_frequencies(r, c.head_dim), store.residual(), device,
                r.attention_factor);
  };
  if (c.rotary) rope_ = rope(c.rope);
  if (c.rotary && c.local_rope) local_rope_ = rope(*c.local_rope);

  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  normed_ = RowBuffer(c.hidden_size, type, device);
  qkv_ = RowBuffer(q + 2 * kv, type, device);
  query_ = RowBuffer(q, type, device);
  attended_ = RowBuffer(q, type, device);
  gate_up_ = RowBuffer(int64_t{2} * c.intermediate_size, type, device);
  inner_ = RowBuffer(c.intermediate_size, type, device);
  projected_ = RowBuffer(c.hidden_size, type, device);
}

void LayerRunner::reach(int max_position) {
  rope_.reach(max_position);
  local_rope_.reach(max_position);
}

void LayerRunner::run(int i, const DecoderWeights::Layer& l, const DistanceBias& distances,
                      at::Tensor& x, const SeenKv& own, const SeenKv* memory) {
  const bool local = config_.local_rope && config_.window_of(i) > 0;
  if (config_.parallel) feed_forward(l, x);
  attend(l, distances, x, own, local ? local_rope_ : rope_);
  if (memory != nullptr) attend_memory(l, x, *memory);
  if (!config_.parallel) feed_forward(l, x);
  add_output(x, l.down, inner_.rows(x.size(0)), l.mlp_output_norm);
}

void LayerRunner::attend(const DecoderWeights::Layer& l, const DistanceBias& distances,
                         at::Tensor& x, const SeenKv& own, const Rope& rope) {
  const auto& [rows, kv] = own;
  at::Tensor& qkv = qkv_.rows(rows.rows);
  at::Tensor& attended = attended_.rows(rows.rows);
  l.qkv.into(qkv, {x, l.attention_norm, normed_.rows(rows.rows)});
  if (l.q_norm.kind != NormKind::kNone) {
    ops_.norm_heads(qkv, 0, kv.heads, kv.head_dim, l.q_norm);
    ops_.norm_heads(qkv, kv.heads, kv.kv_heads, kv.head_dim, l.k_norm);
  }
  ops_.rope_and_store(qkv, rows, kv, rope);
  ops_.attention(attended, qkv, rows, kv, scale_, distances);
  add_output(x, l.o, attended, l.attention_output_norm);
}

void LayerRunner::attend_memory(const DecoderWeights::Layer& l, at::Tensor& x,
                                const SeenKv& memory) {
  at::Tensor& query = query_.rows(x.size(0));
  at::Tensor& attended = attended_.rows(x.size(0));
  l.cross_q.into(query, {x, l.cross_norm, normed_.rows(x.size(0))});
  ops_.attention(attended, query, memory.rows, memory.kv, scale_, DistanceBias());
  add_output(x, l.cross_o, attended, Norm());
}

void LayerRunner::feed_forward(const DecoderWeights::Layer& l, const at::Tensor& x) {
  at::Tensor& inner = inner_.rows(x.size(0));
  const Norm& norm = l.mlp_norm.kind == NormKind::kNone ? l.attention_norm : l.mlp_norm;
  const LinearInput input{x, norm, normed_.rows(x.size(0))};
  if (config_.gated) {
    l.up.gate_into(inner, input, config_.activation, gate_up_);
  } else {
    l.up.activate_into(inner, input, config_.activation);
  }
}

void LayerRunner::add_output(at::Tensor& x, const Linear& linear, const at::Tensor& input,
                             const Norm& norm) {
  at::Tensor& projected = projected_.rows(x.size(0));
  if (norm.kind == NormKind::kNone) return linear.add_to(x, input, projected);
  linear.into(projected, input);
  ops_.add_norm(x, projected, norm);
}

}  // namespace tandem
