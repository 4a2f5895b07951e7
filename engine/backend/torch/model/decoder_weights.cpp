#include "engine/backend/torch/model/decoder_weights.h"

#include <ATen/ops/from_blob.h>

#include <span>
#include <utility>

#include "engine/backend/torch/model/load.h"
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
  TANDEM_ASSIGN_OR_RETURN(l.cross_norm, norm(spec.cross_norm));
  if (c.has_cross_attention()) {
    TANDEM_ASSIGN_OR_RETURN(l.cross_q, linear(spec.cross_q));
    TANDEM_ASSIGN_OR_RETURN(l.cross_o, linear(spec.cross_o));
  }
  TANDEM_ASSIGN_OR_RETURN(l.mlp_norm, norm(spec.mlp_norm));
  TANDEM_ASSIGN_OR_RETURN(l.up,
                          linear(spec.up, c.gated ? cpu::Layout::kPairs : cpu::Layout::kInOrder));
  TANDEM_ASSIGN_OR_RETURN(l.down, linear(spec.down));
  TANDEM_ASSIGN_OR_RETURN(l.mlp_output_norm, norm(spec.mlp_output_norm));
  return l;
}

// layer: const or not
template <class Layer, class F>
void each_linear(Layer& l, const F& f) {
  for (auto* w : {&l.qkv, &l.o, &l.cross_q, &l.cross_o, &l.up, &l.down}) f(*w);
}

template <class F>
void each_part(const DecoderWeights::Layer& l, const F& f) {
  for (const Norm* n : {&l.attention_norm, &l.q_norm, &l.k_norm, &l.attention_output_norm,
                        &l.cross_norm, &l.mlp_norm, &l.mlp_output_norm}) {
    f(*n);
  }
  each_linear(l, f);
}

absl::StatusOr<DistanceBias> load_distances(const DecoderConfig& c, bool both,
                                            const TensorSource& source, const WeightStore& store) {
  DistanceBias bias;
  if (c.names.distance_bias.empty()) return bias;
  TANDEM_ASSIGN_OR_RETURN(const at::Tensor buckets,
                          load_tensor(source, c.names.distance_bias + ".weight",
                                      {c.distance_buckets, c.heads}, store.residual(), at::kCPU));
  bias.before = c.max_distance;
  bias.after = both ? c.max_distance : 0;
  std::vector<int64_t> bucket;
  for (int d = -bias.before; d <= bias.after; ++d) {
    bucket.push_back(distance_bucket(d, both, c.distance_buckets, c.max_distance));
  }
  const at::Tensor index =
      at::from_blob(bucket.data(), {static_cast<int64_t>(bucket.size())}, at::kLong);
  bias.table = buckets.index_select(0, index).t().contiguous().to(store.device);
  return bias;
}

absl::StatusOr<std::unique_ptr<const DecoderWeights::Encoder>> load_encoder(
    const DecoderConfig& decoder, const TensorSource& source, const WeightStore& store) {
  const DecoderConfig& c = *decoder.encoder;
  auto e = std::make_unique<DecoderWeights::Encoder>();
  for (int i = 0; i < c.layers; ++i) {
    TANDEM_ASSIGN_OR_RETURN(DecoderWeights::Layer layer, load_layer(c, i, source, store));
    e->layers.push_back(std::move(layer));
  }
  TANDEM_ASSIGN_OR_RETURN(e->distances, load_distances(c, /*both=*/true, source, store));
  TANDEM_ASSIGN_OR_RETURN(e->final_norm, load_norm(c, final_norm_spec(c), source, store));
  for (int i = 0; i < decoder.layers; ++i) {
    TANDEM_ASSIGN_OR_RETURN(Linear memory,
                            Linear::load(source, store, layer_spec(decoder, i).memory));
    e->memory.push_back(std::move(memory));
  }
  return std::unique_ptr<const DecoderWeights::Encoder>(std::move(e));
}

int64_t bytes_of(const Norm& n) { return bytes_of(n.weight) + bytes_of(n.bias); }
int64_t bytes_of(const Linear& l) { return l.bytes(); }
int64_t numbers_of(const Norm& n) { return numbers_of(n.weight) + numbers_of(n.bias); }
int64_t numbers_of(const Linear& l) { return l.parameters(); }

template <class F>
int64_t sum_of(std::span<const DecoderWeights::Layer> layers, const F& of) {
  int64_t n = 0;
  for (const DecoderWeights::Layer& l : layers) {
    each_part(l, [&](const auto& part) { n += of(part); });
  }
  return n;
}

// Of the decoder and its encoder.
template <class F>
void each_linear_of(const DecoderWeights& w, const F& f) {
  for (const DecoderWeights::Layer& layer : w.layers) each_linear(layer, f);
  f(w.head);
  if (w.encoder == nullptr) return;
  for (const DecoderWeights::Layer& layer : w.encoder->layers) each_linear(layer, f);
  for (const Linear& memory : w.encoder->memory) f(memory);
}

}  // namespace

int64_t DecoderWeights::bytes(int first_layers) const {
  const auto of = [](const auto& part) { return bytes_of(part); };
  return of(final_norm) + of(head) + (tied ? 0 : of(embedding)) + of(table) + of(positions) +
         of(distances.table) +
         sum_of(std::span(layers).first(static_cast<size_t>(first_layers)), of);
}

int64_t DecoderWeights::parameters(int first_layers) const {
  const auto of = [](const auto& part) { return numbers_of(part); };
  return of(final_norm) + of(head) + (tied ? 0 : of(embedding)) + of(table) + of(positions) +
         sum_of(std::span(layers).first(static_cast<size_t>(first_layers)), of);
}

int64_t DecoderWeights::encoder_bytes() const {
  if (encoder == nullptr) return 0;
  const auto of = [](const auto& part) { return bytes_of(part); };
  int64_t n = of(encoder->final_norm) + of(encoder->distances.table) + sum_of(encoder->layers, of);
  for (const Linear& memory : encoder->memory) n += of(memory);
  return n;
}

int64_t DecoderWeights::encoder_parameters() const {
  if (encoder == nullptr) return 0;
  const auto of = [](const auto& part) { return numbers_of(part); };
  int64_t n = of(encoder->final_norm) + sum_of(encoder->layers, of);
  for (const Linear& memory : encoder->memory) n += of(memory);
  return n;
}

int64_t DecoderWeights::expanded_bytes() const {
  int64_t n = 0;
  each_linear_of(*this, [&](const Linear& l) { n += l.expanded_bytes(); });
  return n;
}

std::vector<std::string> DecoderWeights::expanded() const {
  std::vector<std::string> names;
  each_linear_of(*this, [&](const Linear& l) {
    names.insert(names.end(), l.expanded().begin(), l.expanded().end());
  });
  return names;
}

int64_t DecoderWeights::packed_bytes() const {
  int64_t n = head.packed_bytes();
  for (const Layer& layer : layers) {
    each_linear(layer, [&](const Linear& l) { n += l.packed_bytes(); });
  }
  return n;
}

void DecoderWeights::pack() {
  for (Layer& layer : layers) each_linear(layer, [](Linear& l) { l.pack(); });
  head.pack();
}

void DecoderWeights::embed(at::Tensor& x, const int32_t* token) const {
  if (embedding.defined()) {
    store.ops().embed(x, embedding, token);
  } else {
    (tied ? head : table).look_up(x, token);
  }
}

absl::StatusOr<DecoderWeights> DecoderWeights::load(const DecoderConfig& c, bool tied,
                                                    const TensorSource& source,
                                                    const WeightStore& store, const Range& range) {
  DecoderWeights w;
  w.store = store;
  w.tied = tied;
  w.layers.resize(static_cast<size_t>(c.layers));
  for (int i = range.begin; i < (range.end < 0 ? c.layers : range.end); ++i) {
    TANDEM_ASSIGN_OR_RETURN(w.layers[static_cast<size_t>(i)], load_layer(c, i, source, store));
  }
  TANDEM_ASSIGN_OR_RETURN(w.distances, load_distances(c, /*both=*/false, source, store));
  if (range.begin > 0) return w;
  if (c.encoder != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(w.encoder, load_encoder(c, source, store));
  }
  TANDEM_ASSIGN_OR_RETURN(w.final_norm, load_norm(c, final_norm_spec(c), source, store));
  if (c.output_scale != 1) w.final_norm.weight.mul_(c.output_scale);
  if (tied) {
    TANDEM_ASSIGN_OR_RETURN(w.head, Linear::load(source, store, embedding_spec(c)));
    w.embedding = w.head.weight();
  } else {
    if (store.dtype == DType::kStored || store.dtype == DType::kQ40) {
      TANDEM_ASSIGN_OR_RETURN(w.table, Linear::load(source, store, embedding_spec(c)));
      if (w.table.weight().defined()) w.embedding = std::exchange(w.table, {}).weight();
    } else {
      const at::ScalarType type =
          store.platform().embedding_type(store.dtype, c.dtype.value_or(SafeDType::kF32));
      TANDEM_ASSIGN_OR_RETURN(w.embedding,
                              load_matrix(source, embedding_spec(c), type, store.device));
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

}  // namespace tandem
