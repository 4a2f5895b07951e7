// The encoder of T5 and its like: rows that all see each other, and what decoders read of them.
//
// Its cache holds no keys and values of its own layers, which nobody needs once a pass is over, but
// those that each layer of the decoder has of its last rows: the memory of cross-attention. So it
// has the decoder's geometry, and to "run all layers" means all of its own, and what they leave.
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

// Of a decoder with the first config.layers layers of these weights.
class Encoder final : public Model {
 public:
  // REQUIRES: config.encoder, weights->encoder
  Encoder(std::string name, const DecoderConfig& config,
          std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type);

  const KvGeometry& geometry() const override { return geometry_; }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
             int max_position) override;
  // All layers, of whole passes; x becomes what the last norm makes of it.
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
           const Memory& memory) override;
  void head(at::Tensor& logits, const at::Tensor& hidden, int ids) override;  // throws: it has none

 private:
  const DecoderConfig config_;  // the encoder's
  std::shared_ptr<const DecoderWeights> shared_weights_;
  const DecoderWeights::Encoder& weights_;
  KvGeometry geometry_;
  ModelShape shape_;
  LayerRunner runner_;
  RowBuffer normed_;  // [rows, hidden]
  RowBuffer left_;    // [rows, 2 * kv_heads * head_dim]
};

}  // namespace tandem
