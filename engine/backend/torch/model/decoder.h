// A decoder-only transformer: Llama, Mistral, Qwen, Gemma, GPT-2, Phi, and what is built like them.
//
//   x = embed(token) * scale (+ embed(position))
//   each layer: x += o(attention(rope(norm(q)), rope(norm(k)), v of qkv(norm(x))))
//               x += down(act(gate) * up) of norm(x), or down(act(up))
//   logits = head(norm(x))
//
// What of it a model has is said by DecoderConfig, kind by kind; o's and down's outputs go through
// norms of their own where there are such (Gemma).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/linear.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Norms and the residual stream are fp32, with fp64 matrices fp64.
struct DecoderWeights {
  struct Layer {
    Norm attention_norm;  // [hidden]
    Linear qkv;           // hidden -> (heads + 2 kv_heads) * head_dim
    Norm q_norm, k_norm;  // [head_dim]
    Linear o;             // heads * head_dim -> hidden
    Norm attention_output_norm;
    Norm mlp_norm;
    Linear up;    // hidden -> intermediate, or gate and up: twice that
    Linear down;  // intermediate -> hidden
    Norm mlp_output_norm;
  };
  WeightStore store;
  bool tied = false;  // the head is the embedding
  at::Tensor
      embedding;  // [vocab, hidden]; undefined where it is the rows of a packed head or table
  Linear table;   // of DType::kStored if not tied: the embedding in the file's blocks
  at::Tensor positions;  // [max_positions, hidden], if they are learned
  std::vector<Layer> layers;
  Norm final_norm;  // [hidden]
  Linear head;      // hidden -> vocab

  // With the first so many layers.
  int64_t bytes(int first_layers) const;
  int64_t parameters(int first_layers) const;

  // `progress` is told the layers done after each. Errors as load_matrix().
  static absl::StatusOr<DecoderWeights> load(const DecoderConfig& config, bool tied,
                                             const TensorSource& source, const WeightStore& store,
                                             const std::function<void(int layers)>& progress = {});
};

// Reads the first config.layers layers of weights that others may read too.
class Decoder final : public Model {
 public:
  Decoder(std::string name, const DecoderConfig& config,
          std::shared_ptr<const DecoderWeights> weights, at::ScalarType kv_type);

  const KvGeometry& geometry() const override { return geometry_; }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
             int max_position) override;
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool) override;
  void head(at::Tensor& logits, const at::Tensor& hidden, int ids) override;

 private:
  void attend(const DecoderWeights::Layer& l, at::Tensor& x, const RowView& rows, const LayerKv& kv,
              const Rope& rope);
  void feed_forward(const DecoderWeights::Layer& l, at::Tensor& x);
  // x += norm(linear(input))
  void add_output(at::Tensor& x, const Linear& linear, const at::Tensor& input, const Norm& norm);

  DecoderConfig config_;
  std::shared_ptr<const DecoderWeights> shared_weights_;
  const DecoderWeights& weights_;
  const Ops& ops_;
  KvGeometry geometry_;
  ModelShape shape_;
  double scale_ = 0;  // of attention's scores
  Rope rope_;
  Rope local_rope_;  // of layers with a window, where it is another
  // Activations between the products of a layer, by rows.
  RowBuffer normed_;     // [rows, hidden]
  RowBuffer qkv_;        // [rows, (heads + 2 kv_heads) * head_dim]
  RowBuffer attended_;   // [rows, heads * head_dim]
  RowBuffer gate_up_;    // [rows, 2 * intermediate]
  RowBuffer inner_;      // [rows, intermediate]
  RowBuffer projected_;  // [rows, hidden]
  RowBuffer head_in_;    // [reads, hidden]
  RowBuffer logits_;     // [reads, vocab], on CUDA where products are not fp32
};

}  // namespace tandem
