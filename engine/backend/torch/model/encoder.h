// The encoder of T5 and similar models: all rows of a pass see each other.
//
// Its cache holds the memory of cross-attention: the keys and values that each decoder layer
// computes from the encoder's last rows. It therefore has the decoder's geometry. Keys and values
// of the encoder's own layers are needed only during a pass. Running all layers means all of the
// encoder's layers, then writing the memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/decoder_weights.h"
#include "engine/backend/torch/model/layer_runner.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem {

// Of a decoder that uses the first config.layers layers of these weights.
class Encoder final : public Model {
 public:
  // REQUIRES: config.encoder, weights->encoder
  Encoder(std::string name, const DecoderConfig& config,
          std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type);

  const KvGeometry& geometry() const override { return geometry_; }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
             int max_position) override;
  // Runs all layers of whole passes. x becomes the output of the final norm.
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
           const Memory& memory, LoraGroups loras) override;
  void store_kv(int layer, const at::Tensor& x, const RowView& rows, const KvPool& pool,
                LoraGroups loras) override;
  // Throws: there is no head.
  void head(at::Tensor& logits, const at::Tensor& hidden, const cpu::Columns& columns) override;
  void final_norm(at::Tensor& out, const at::Tensor& hidden) override;

 private:
  const DecoderConfig config_;  // the encoder's
  std::shared_ptr<const DecoderWeights> shared_weights_;
  const DecoderWeights::Encoder& weights_;
  KvGeometry geometry_;
  ModelShape shape_;
  LayerRunner runner_;
  RowBuffer normed_;  // [rows, hidden]
  RowBuffer memory_;  // [rows, 2 * kv_heads * head_dim]
};

}  // namespace tandem
