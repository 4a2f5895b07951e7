#include "engine/backend/torch/model/decoder.h"

#include <cmath>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/profile.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

int64_t bytes_of(const at::Tensor& t) {
  return t.defined() ? t.numel() * static_cast<int64_t>(t.element_size()) : 0;
}

int64_t numbers_of(const at::Tensor& t) { return t.defined() ? t.numel() : 0; }

absl::StatusOr<Norm> load_norm(const DecoderConfig& c, const NormSpec& spec,
                               const TensorSource& source, const WeightStore& store) {
  Norm norm;
  if (spec.name.empty()) return norm;
  const auto part = [&](const char* end) {
    return load_tensor(source, spec.name + end, {spec.width}, store.residual(), store.device);
  };
  norm.kind = c.norm;
  norm.eps = c.norm_eps;
  TANDEM_ASSIGN_OR_RETURN(norm.weight, part(".weight"));
  if (c.one_plus_weight) norm.weight.add_(1);
  if (c.norm == NormKind::kLayer) {
    TANDEM_ASSIGN_OR_RETURN(norm.bias, part(".bias"));
  }
  return norm;
}

absl::StatusOr<DecoderWeights::Layer> load_layer(const DecoderConfig& c, int layer,
                                                 const TensorSource& source,
                                                 const WeightStore& store) {
  const LayerSpec spec = layer_spec(c, layer);
  const auto norm = [&](const NormSpec& s) { return load_norm(c, s, source, store); };
  const auto linear = [&](const LinearSpec& s, cpu::Layout layout = cpu::Layout::kInOrder) {
    return Linear::load(source, store, s, layout);
  };
  DecoderWeights::Layer l;
  TANDEM_ASSIGN_OR_RETURN(l.attention_norm, norm(spec.attention_norm));
  TANDEM_ASSIGN_OR_RETURN(l.qkv, linear(spec.qkv));
  TANDEM_ASSIGN_OR_RETURN(l.q_norm, norm(spec.q_norm));
  TANDEM_ASSIGN_OR_RETURN(l.k_norm, norm(spec.k_norm));
  TANDEM_ASSIGN_OR_RETURN(l.o, linear(spec.o));
  TANDEM_ASSIGN_OR_RETURN(l.attention_output_norm, norm(spec.attention_output_norm));
  TANDEM_ASSIGN_OR_RETURN(l.mlp_norm, norm(spec.mlp_norm));
  TANDEM_ASSIGN_OR_RETURN(l.up,
                          linear(spec.up, c.gated ? cpu::Layout::kPairs : cpu::Layout::kInOrder));
  TANDEM_ASSIGN_OR_RETURN(l.down, linear(spec.down));
  TANDEM_ASSIGN_OR_RETURN(l.mlp_output_norm, norm(spec.mlp_output_norm));
  return l;
}

template <class F>
void each_part(const DecoderWeights::Layer& l, const F& f) {
  for (const Norm* n : {&l.attention_norm, &l.q_norm, &l.k_norm, &l.attention_output_norm,
                        &l.mlp_norm, &l.mlp_output_norm}) {
    f(*n);
  }
  for (const Linear* w : {&l.qkv, &l.o, &l.up, &l.down}) f(*w);
}

// In what an embedding is kept that is not tied to a head. Int8 is for products: a table keeps the
// file's numbers.
at::ScalarType embedding_type(const WeightStore& store, const DecoderConfig& c) {
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

int64_t DecoderWeights::bytes(int first_layers) const {
  const auto norm_bytes = [](const Norm& n) { return bytes_of(n.weight) + bytes_of(n.bias); };
  int64_t n = norm_bytes(final_norm) + head.bytes() + (tied ? 0 : bytes_of(embedding)) +
              table.bytes() + bytes_of(positions);
  for (const Layer& l : std::span(layers).first(static_cast<size_t>(first_layers))) {
    each_part(l, [&]<class Part>(const Part& part) {
      if constexpr (std::is_same_v<Part, Norm>) {
        n += norm_bytes(part);
      } else {
        n += part.bytes();
      }
    });
  }
  return n;
}

int64_t DecoderWeights::parameters(int first_layers) const {
  const auto of_norm = [](const Norm& n) { return numbers_of(n.weight) + numbers_of(n.bias); };
  int64_t n = of_norm(final_norm) + head.parameters() + (tied ? 0 : embedding.numel()) +
              table.parameters() + numbers_of(positions);
  for (const Layer& l : std::span(layers).first(static_cast<size_t>(first_layers))) {
    each_part(l, [&]<class Part>(const Part& part) {
      if constexpr (std::is_same_v<Part, Norm>) {
        n += of_norm(part);
      } else {
        n += part.parameters();
      }
    });
  }
  return n;
}

absl::StatusOr<DecoderWeights> DecoderWeights::load(const DecoderConfig& c, bool tied,
                                                    const TensorSource& source,
                                                    const WeightStore& store,
                                                    const std::function<void(int)>& progress) {
  DecoderWeights w;
  w.store = store;
  w.tied = tied;
  for (int i = 0; i < c.layers; ++i) {
    TANDEM_ASSIGN_OR_RETURN(Layer layer, load_layer(c, i, source, store));
    w.layers.push_back(std::move(layer));
    if (progress) progress(i + 1);
  }
  TANDEM_ASSIGN_OR_RETURN(w.final_norm, load_norm(c, final_norm_spec(c), source, store));
  if (tied) {
    TANDEM_ASSIGN_OR_RETURN(w.head, Linear::load(source, store, embedding_spec(c)));
    w.embedding = w.head.weight();
  } else {
    if (store.dtype == DType::kStored && store.packed()) {
      TANDEM_ASSIGN_OR_RETURN(w.table, Linear::load(source, store, embedding_spec(c)));
    } else {
      TANDEM_ASSIGN_OR_RETURN(w.embedding, load_matrix(source, embedding_spec(c),
                                                       embedding_type(store, c), store.device));
    }
    TANDEM_ASSIGN_OR_RETURN(w.head, Linear::load(source, store, head_spec(c)));
  }
  if (!c.names.positions.empty()) {
    TANDEM_ASSIGN_OR_RETURN(
        w.positions, load_tensor(source, c.names.positions + ".weight",
                                 {c.max_positions, c.hidden_size}, store.residual(), store.device));
  }
  return w;
}

Decoder::Decoder(std::string name, const DecoderConfig& c,
                 std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type)
    : config_(c),
      shared_weights_(std::move(weights)),
      weights_(*shared_weights_),
      ops_(weights_.store.ops()) {
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
  // Where some layers see everything, all rows stay.
  shape_.window = c.full_layers.empty() ? c.window : 0;
  shape_.weight_bytes = weights_.bytes(c.layers);
  shape_.parameters = weights_.parameters(c.layers);
  scale_ =
      c.attention_scale > 0 ? c.attention_scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  const auto rope = [&](const RopeConfig& r) {
    return Rope(rope_inverse_frequencies(r, c.head_dim), residual, device);
  };
  if (c.rotary) rope_ = rope(c.rope);
  if (c.rotary && c.local_rope) local_rope_ = rope(*c.local_rope);

  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  normed_ = RowBuffer(c.hidden_size, type, device);
  qkv_ = RowBuffer(q + 2 * kv, type, device);
  attended_ = RowBuffer(q, type, device);
  gate_up_ = RowBuffer(int64_t{2} * c.intermediate_size, type, device);
  inner_ = RowBuffer(c.intermediate_size, type, device);
  projected_ = RowBuffer(c.hidden_size, type, device);
  head_in_ = RowBuffer(c.hidden_size, type, device);
  logits_ = RowBuffer(c.vocab_size, type, device);
}

void Decoder::embed(at::Tensor& x, const int32_t* token, const int32_t* position,
                    int max_position) {
  rope_.reach(max_position);
  local_rope_.reach(max_position);
  if (weights_.embedding.defined()) {
    ops_.embed(x, weights_.embedding, token);
  } else {
    (weights_.tied ? weights_.head : weights_.table).look_up(x, token);
  }
  if (config_.embedding_scale != 1) ops_.scale_rows(x, token, config_.embedding_scale);
  if (weights_.positions.defined()) ops_.add_positions(x, weights_.positions, token, position);
}

void Decoder::run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool) {
  RowView seen = rows;
  for (int i = from; i < to; ++i) {
    const auto layer = static_cast<size_t>(i);
    const DecoderWeights::Layer& l = weights_.layers[layer];
    const LayerKv kv{config_.heads, config_.kv_heads, config_.head_dim, pool.layer_keys[layer],
                     pool.layer_values[layer]};
    const int window = config_.window_of(i);
    seen.window = config_.full_layers.empty() ? 0 : window;
    attend(l, x, seen, kv, window > 0 && config_.local_rope ? local_rope_ : rope_);
    feed_forward(l, x);
  }
}

void Decoder::attend(const DecoderWeights::Layer& l, at::Tensor& x, const RowView& rows,
                     const LayerKv& kv, const Rope& rope) {
  at::Tensor& qkv = qkv_.rows(rows.rows);
  at::Tensor& attended = attended_.rows(rows.rows);
  l.qkv.into(qkv, {x, l.attention_norm, normed_.rows(rows.rows)});
  if (l.q_norm.kind != NormKind::kNone) {
    ops_.norm_heads(qkv, 0, kv.heads, kv.head_dim, l.q_norm);
    ops_.norm_heads(qkv, kv.heads, kv.kv_heads, kv.head_dim, l.k_norm);
  }
  ops_.rope_and_store(qkv, rows, kv, rope);
  ops_.attention(attended, qkv, rows, kv, scale_);
  add_output(x, l.o, attended, l.attention_output_norm);
}

void Decoder::feed_forward(const DecoderWeights::Layer& l, at::Tensor& x) {
  at::Tensor& inner = inner_.rows(x.size(0));
  const LinearInput input{x, l.mlp_norm, normed_.rows(x.size(0))};
  if (config_.gated) {
    l.up.gate_into(inner, input, config_.activation, gate_up_);
  } else {
    l.up.activate_into(inner, input, config_.activation);
  }
  add_output(x, l.down, inner, l.mlp_output_norm);
}

void Decoder::add_output(at::Tensor& x, const Linear& linear, const at::Tensor& input,
                         const Norm& norm) {
  at::Tensor& projected = projected_.rows(x.size(0));
  if (norm.kind == NormKind::kNone) return linear.add_to(x, input, projected);
  linear.into(projected, input);
  ops_.add_norm(x, projected, norm);
}

void Decoder::head(at::Tensor& logits, const at::Tensor& hidden, int ids) {
  const StepProfile::Section section(StepProfile::kHead);
  const int64_t n = hidden.size(0);
  at::Tensor& normed = head_in_.rows(n);
  at::Tensor* scratch =
      logits.scalar_type() == normed.scalar_type() || normed.is_cpu() ? nullptr : &logits_.rows(n);
  weights_.head.into(logits, {hidden, weights_.final_norm, normed}, scratch, ids);
}

}  // namespace tandem
