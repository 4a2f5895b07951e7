#include "engine/backend/torch/model/layer_runner.h"

#include <cmath>

namespace tandem {

LayerRunner::LayerRunner(const DecoderConfig& c, const WeightStore& store)
    : config_(c), ops_(store.ops()), lora_(store) {
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
                      at::Tensor& x, const SeenKv& own, const SeenKv* memory, LoraGroups loras) {
  const Adapted adapted{i, loras};
  if (config_.parallel) feed_forward(l, x, adapted);
  attend(l, distances, x, own, adapted);
  if (memory != nullptr) attend_memory(l, x, *memory);
  if (!config_.parallel) feed_forward(l, x, adapted);
  read_ahead(l, LoraPart::kDown, adapted);
  add_output(x, l.down, inner_.rows(x.size(0)), l.mlp_output_norm, LoraPart::kDown, adapted);
}

void LayerRunner::store_kv(int i, const DecoderWeights::Layer& l, const at::Tensor& x,
                           const SeenKv& own, LoraGroups loras) {
  project_qkv(l, x, own, {i, loras});
}

const Rope& LayerRunner::rope_of(int layer) const {
  return config_.local_rope && config_.window_of(layer) > 0 ? local_rope_ : rope_;
}

at::Tensor& LayerRunner::project_qkv(const DecoderWeights::Layer& l, const at::Tensor& x,
                                     const SeenKv& own, const Adapted& adapted) {
  const auto& [rows, kv] = own;
  at::Tensor& qkv = qkv_.rows(rows.rows);
  const LinearInput input{x, l.attention_norm, normed_.rows(rows.rows)};
  read_ahead(l, LoraPart::kQkv, adapted);
  l.qkv.into(qkv, input);
  lora_.add(qkv, input, adapted.groups, adapted.layer, LoraPart::kQkv);
  if (l.q_norm.kind != NormKind::kNone) {
    ops_.norm_heads(qkv, 0, kv.heads, kv.head_dim, l.q_norm);
    ops_.norm_heads(qkv, kv.heads, kv.kv_heads, kv.head_dim, l.k_norm);
  }
  ops_.rope_and_store(qkv, rows, kv, rope_of(adapted.layer));
  return qkv;
}

void LayerRunner::attend(const DecoderWeights::Layer& l, const DistanceBias& distances,
                         at::Tensor& x, const SeenKv& own, const Adapted& adapted) {
  const auto& [rows, kv] = own;
  const at::Tensor& qkv = project_qkv(l, x, own, adapted);
  at::Tensor& attended = attended_.rows(rows.rows);
  ops_.attention(attended, qkv, rows, kv, scale_, distances);
  read_ahead(l, LoraPart::kO, adapted);
  add_output(x, l.o, attended, l.attention_output_norm, LoraPart::kO, adapted);
}

void LayerRunner::attend_memory(const DecoderWeights::Layer& l, at::Tensor& x,
                                const SeenKv& memory) {
  at::Tensor& query = query_.rows(x.size(0));
  at::Tensor& attended = attended_.rows(x.size(0));
  l.cross_q.into(query, {x, l.cross_norm, normed_.rows(x.size(0))});
  ops_.attention(attended, query, memory.rows, memory.kv, scale_, DistanceBias());
  l.cross_o.add_to(x, attended, projected_.rows(x.size(0)));
}

void LayerRunner::feed_forward(const DecoderWeights::Layer& l, const at::Tensor& x,
                               const Adapted& adapted) {
  at::Tensor& inner = inner_.rows(x.size(0));
  const Norm& norm = l.mlp_norm.kind == NormKind::kNone ? l.attention_norm : l.mlp_norm;
  const LinearInput input{x, norm, normed_.rows(x.size(0))};
  if (config_.gated) {
    const AddedRows* const added =
        lora_.sums(input, adapted.groups, adapted.layer, LoraPart::kUp, l.up.outs());
    read_ahead(l, LoraPart::kUp, adapted);
    l.up.gate_into(inner, input, config_.activation, gate_up_, added);
  } else if (adapted.groups.empty()) {
    l.up.activate_into(inner, input, config_.activation);
  } else {
    l.up.into(inner, input);
    lora_.add(inner, input, adapted.groups, adapted.layer, LoraPart::kUp);
    ops_.activate(inner, config_.activation);
  }
}

void LayerRunner::read_ahead(const DecoderWeights::Layer& l, LoraPart part,
                             const Adapted& adapted) const {
  if (adapted.groups.groups.empty()) return;  // on CUDA, rows name their adapter
  const int64_t bytes[] = {l.qkv.bytes(), l.o.bytes(), l.up.bytes(), l.down.bytes()};
  double all = 0, before = 0;
  for (size_t i = 0; i < kLoraParts; ++i) {
    all += static_cast<double>(bytes[i]);
    if (i < static_cast<size_t>(part)) before += static_cast<double>(bytes[i]);
  }
  const auto own = static_cast<double>(bytes[static_cast<size_t>(part)]);
  lora_.read_ahead(adapted.groups, adapted.layer, before / all, (before + own) / all);
}

void LayerRunner::add_output(at::Tensor& x, const Linear& linear, const at::Tensor& input,
                             const Norm& norm, LoraPart part, const Adapted& adapted) {
  at::Tensor& projected = projected_.rows(x.size(0));
  if (norm.kind == NormKind::kNone) {
    linear.add_to(x, input, projected);
    return lora_.add(x, input, adapted.groups, adapted.layer, part);
  }
  linear.into(projected, input);
  lora_.add(projected, input, adapted.groups, adapted.layer, part);
  ops_.add_norm(x, projected, norm);
}

}  // namespace tandem
