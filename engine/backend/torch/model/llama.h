// The Llama family: Llama 2 and 3, Mistral, Qwen 2, and what is built like them.
//
//   x = embed(token)
//   each layer: x += o(attention(rope(q, k), v of qkv(norm(x))));  x += down(silu(gate) * up)
//   logits = head(norm(x))
//
// As in Transformers' modeling_llama.py, modeling_mistral.py and modeling_qwen2.py.
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
#include "engine/backend/torch/model/tensor_source.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/hf_config.h"

namespace tandem {

// Norms and the residual stream are fp32, with fp64 matrices fp64.
struct LlamaWeights {
  struct Layer {
    at::Tensor attention_norm;  // [hidden]
    Linear qkv;                 // hidden -> (heads + 2 kv_heads) * head_dim
    Linear o;                   // heads * head_dim -> hidden
    at::Tensor mlp_norm;        // [hidden]
    Linear gate_up;             // hidden -> 2 * intermediate
    Linear down;                // intermediate -> hidden
  };
  WeightStore store;
  bool tied = false;     // the head is the embedding
  at::Tensor embedding;  // [vocab, hidden]; undefined where it is the rows of a packed head
  std::vector<Layer> layers;
  at::Tensor final_norm;  // [hidden]
  Linear head;            // hidden -> vocab

  int64_t bytes() const;
  int64_t parameters() const;

  // `progress` is told the layers done after each. Errors as load_stacked().
  static absl::StatusOr<LlamaWeights> load(const HfConfig& config, bool tied,
                                           const TensorSource& source, const WeightStore& store,
                                           const std::function<void(int layers)>& progress = {});
};

class Llama final : public Model {
 public:
  Llama(std::string name, const HfConfig& config, LlamaWeights weights, at::ScalarType kv_type);

  const KvGeometry& geometry() const override { return geometry_; }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, int max_position) override;
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool) override;
  void head(at::Tensor& logits, const at::Tensor& hidden) override;

 private:
  HfConfig config_;
  LlamaWeights weights_;
  KvGeometry geometry_;
  ModelShape shape_;
  Rope rope_;
  // Activations between the products of a layer, by rows.
  RowBuffer normed_;     // [rows, hidden]
  RowBuffer qkv_;        // [rows, (heads + 2 kv_heads) * head_dim]
  RowBuffer attended_;   // [rows, heads * head_dim]
  RowBuffer gate_up_;    // [rows, 2 * intermediate]
  RowBuffer gated_;      // [rows, intermediate]
  RowBuffer projected_;  // [rows, hidden]
  RowBuffer head_in_;    // [reads, hidden]
  RowBuffer logits_;     // [reads, vocab], on CUDA where products are not fp32
};

}  // namespace tandem
