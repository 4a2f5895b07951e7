#include "engine/backend/torch/model/encoder.h"

#include <c10/util/Exception.h>

#include <utility>

#include "engine/backend/torch/ops.h"

namespace tandem {

Encoder::Encoder(std::string name, const DecoderConfig& decoder,
                 std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type)
    : config_(*decoder.encoder),
      shared_weights_(std::move(weights)),
      weights_(*shared_weights_->encoder),
      runner_(config_, shared_weights_->store) {
  const WeightStore& store = shared_weights_->store;
  geometry_ = {decoder.layers,      config_.kv_heads, config_.head_dim,
               config_.hidden_size, kv_type,          store.residual()};
  shape_.name = std::move(name);
  shape_.architecture = decoder.architecture;
  shape_.dtype = dtype_name(store.dtype);
  shape_.vocab_size = config_.vocab_size;
  shape_.layers = geometry_.layers;
  shape_.hidden_size = config_.hidden_size;
  shape_.max_positions = config_.max_positions;
  shape_.encodes = true;
  shape_.depth = config_.layers;
  shape_.weight_bytes = shared_weights_->encoder_bytes();
  shape_.parameters = shared_weights_->encoder_parameters();
  normed_ = RowBuffer(config_.hidden_size, store.rows(), store.device);
  memory_ = RowBuffer(int64_t{2} * config_.kv_heads * config_.head_dim, store.rows(), store.device);
}

void Encoder::embed(at::Tensor& x, const int32_t* token, const int32_t* /*position*/,
                    int max_position) {
  runner_.reach(max_position);
  shared_weights_->embed(x, token);
}

void Encoder::run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
                  const Memory& memory, LoraGroups loras) {
  TORCH_CHECK(from == 0 && to == geometry_.layers && memory.pool == nullptr && loras.empty(),
              "an encoder runs all layers, not ", from, " to ", to, " of ", geometry_.layers);
  // Until the memory is written, the pages of the decoder's first layer hold the keys and values of
  // the encoder's current layer.
  const LayerKv own{config_.heads, config_.kv_heads, config_.head_dim, pool.layer_keys[0],
                    pool.layer_values[0]};
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    runner_.run(static_cast<int>(i), weights_.layers[i], weights_.distances, x, {rows, own},
                nullptr, {});
  }
  const Ops& ops = shared_weights_->store.ops();
  at::Tensor& kv_rows = memory_.rows(rows.rows);
  for (size_t i = 0; i < static_cast<size_t>(geometry_.layers); ++i) {
    weights_.memory[i].into(kv_rows, {x, weights_.final_norm, normed_.rows(rows.rows)});
    const LayerKv kv{0, config_.kv_heads, config_.head_dim, pool.layer_keys[i],
                     pool.layer_values[i]};
    ops.rope_and_store(kv_rows, rows, kv, Rope());
  }
  // Encoder states that condition other models are the rows after the final norm.
  at::Tensor& normed = normed_.rows(rows.rows);
  ops.norm(normed, x, weights_.final_norm);
  x.copy_(normed);
}

void Encoder::store_kv(int /*layer*/, const at::Tensor& /*x*/, const RowView& /*rows*/,
                       const KvPool& /*pool*/, LoraGroups /*loras*/) {
  TORCH_CHECK(false, "an encoder's outputs are read by all layers of the decoder");
}

void Encoder::head(at::Tensor& /*logits*/, const at::Tensor& /*hidden*/,
                   const cpu::Columns& /*columns*/) {
  TORCH_CHECK(false, "an encoder has no head");
}

// run() ends with the final norm.
void Encoder::final_norm(at::Tensor& out, const at::Tensor& hidden) { out.copy_(hidden); }

}  // namespace tandem
