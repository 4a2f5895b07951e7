#include "engine/backend/torch/model/decoder.h"

#include <optional>
#include <utility>

#include "engine/backend/torch/profile.h"

namespace tandem {

Decoder::Decoder(std::string name, const DecoderConfig& c,
                 std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type)
    : config_(c),
      shared_weights_(std::move(weights)),
      weights_(*shared_weights_),
      ops_(weights_.store.ops()),
      runner_(c, weights_.store) {
  const at::ScalarType type = weights_.store.rows();
  const at::Device device = weights_.store.device;
  geometry_ = {c.layers, c.kv_heads, c.head_dim, c.hidden_size, kv_type, weights_.store.residual()};
  shape_.name = std::move(name);
  shape_.architecture = c.architecture;
  shape_.dtype = dtype_name(weights_.store.dtype);
  shape_.vocab_size = c.vocab_size;
  shape_.layers = c.layers;
  shape_.hidden_size = c.hidden_size;
  shape_.max_positions = c.max_positions;
  // With full-attention layers, no row can be dropped.
  shape_.window = c.full_layers.empty() && !c.bidirectional ? c.window : 0;
  shape_.bidirectional = c.bidirectional;
  shape_.local_window = c.bidirectional ? c.window : 0;
  shape_.embeds_only = c.bidirectional || c.headless;
  shape_.reads_memory = c.has_cross_attention();
  shape_.weight_bytes = weights_.bytes(c.layers);
  shape_.parameters = weights_.parameters(c.layers);
  head_in_ = RowBuffer(c.hidden_size, type, device);
}

void Decoder::embed(at::Tensor& x, const int32_t* token, const int32_t* position,
                    int max_position) {
  runner_.reach(max_position);
  weights_.embed(x, token);
  if (config_.embedding_scale != 1) ops_.scale_rows(x, token, config_.embedding_scale);
  if (weights_.positions.defined()) ops_.add_positions(x, weights_.positions, token, position);
}

void Decoder::add_positions(at::Tensor& x, const int32_t* replaced, const int32_t* position) {
  if (weights_.positions.defined()) ops_.add_positions(x, weights_.positions, replaced, position);
}

// The rows with the window of a layer.
RowView Decoder::seen_in(int layer, const RowView& rows) const {
  RowView seen = rows;
  const int window = config_.window_of(layer);
  if (!config_.bidirectional) {
    seen.window = config_.full_layers.empty() ? 0 : window;
  } else if (window > 0) {
    seen.first_key = rows.near_first;
    seen.dense_end = rows.near_end;
  }
  return seen;
}

LayerKv Decoder::kv_of(int layer, const KvPool& pool) const {
  const auto i = static_cast<size_t>(layer);
  return {config_.heads, config_.kv_heads, config_.head_dim, pool.layer_keys[i],
          pool.layer_values[i]};
}

void Decoder::run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
                  const Memory& memory, LoraGroups loras) {
  for (int i = from; i < to; ++i) {
    const RowView seen = seen_in(i, rows);
    std::optional<SeenKv> read;
    if (memory.pool != nullptr) read.emplace(SeenKv{memory.rows, kv_of(i, *memory.pool)});
    runner_.run(i, weights_.layers[static_cast<size_t>(i)], weights_.distances, x,
                {seen, kv_of(i, pool)}, read ? &*read : nullptr, loras);
  }
}

void Decoder::store_kv(int layer, const at::Tensor& x, const RowView& rows, const KvPool& pool,
                       LoraGroups loras) {
  runner_.store_kv(layer, weights_.layers[static_cast<size_t>(layer)], x,
                   {rows, kv_of(layer, pool)}, loras);
}

void Decoder::head(at::Tensor& logits, const at::Tensor& hidden, const cpu::Columns& columns) {
  const StepProfile::Section section(StepProfile::kHead);
  const int64_t n = hidden.size(0);
  at::Tensor& normed = head_in_.rows(n);
  weights_.head.into(logits, {hidden, weights_.final_norm, normed}, columns);
}

void Decoder::final_norm(at::Tensor& out, const at::Tensor& hidden) {
  ops_.norm(out, hidden, weights_.final_norm);
}

}  // namespace tandem
