// A transformer decoder: Llama, Mistral, Qwen, Gemma, GPT-2, Phi, Falcon, T5 and similar models.
//
//   x = embed(token) * scale (+ embed(position))
//   each layer: x += o(attention(rope(norm(q)), rope(norm(k)), v of qkv(norm(x))))
//               (x += o'(attention(q'(norm(x)), an encoder's keys and values)))
//               x += down(act(gate) * up) of norm(x), or down(act(up))
//               (in parallel blocks both read the same x)
//   logits = head(norm(x))
//
// DecoderConfig selects the parts of a model. Gemma also normalizes the outputs of o and down.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/decoder_weights.h"
#include "engine/backend/torch/model/layer_runner.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem {

// Uses the first config.layers layers of weights that other models may share.
class Decoder final : public Model {
 public:
  Decoder(std::string name, const DecoderConfig& config,
          std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type);

  const KvGeometry& geometry() const override { return geometry_; }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
             int max_position) override;
  void add_positions(at::Tensor& x, const int32_t* replaced, const int32_t* position) override;
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
           const Memory& memory, LoraGroups loras) override;
  void store_kv(int layer, const at::Tensor& x, const RowView& rows, const KvPool& pool,
                LoraGroups loras) override;
  void head(at::Tensor& logits, const at::Tensor& hidden, const cpu::Columns& columns) override;
  void final_norm(at::Tensor& out, const at::Tensor& hidden) override;
  int most_head_rows() const override { return weights_.head.most_rows(); }
  bool can_be_captured() const override { return true; }
  // Prepares run() for positions up to max_position, like embed().
  void reach(int max_position) { runner_.reach(max_position); }

 private:
  RowView seen_in(int layer, const RowView& rows) const;
  LayerKv kv_of(int layer, const KvPool& pool) const;

  DecoderConfig config_;
  std::shared_ptr<const DecoderWeights> shared_weights_;
  const DecoderWeights& weights_;
  const Ops& ops_;
  KvGeometry geometry_;
  ModelShape shape_;
  LayerRunner runner_;
  RowBuffer head_in_;  // [reads, hidden]
};

}  // namespace tandem
