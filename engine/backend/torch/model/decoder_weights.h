// The weights of a decoder, and of the encoder that it may have, as products and kernels read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/model/linear.h"
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
    Norm cross_norm;
    Linear cross_q;  // hidden -> heads * head_dim
    Linear cross_o;  // heads * head_dim -> hidden
    Norm mlp_norm;
    Linear up;    // hidden -> intermediate, or gate and up: twice that
    Linear down;  // intermediate -> hidden
    Norm mlp_output_norm;
  };
  WeightStore store;
  bool tied = false;  // the head is the embedding
  at::Tensor
      embedding;  // [vocab, hidden]; undefined where it is the rows of a packed head or table
  Linear table;   // of DType::kStored if not tied: the embedding in the file's blocks, or packed
  at::Tensor positions;  // [max_positions, hidden], if they are learned
  std::vector<Layer> layers;
  DistanceBias distances;
  Norm final_norm;  // [hidden]
  Linear head;      // hidden -> vocab

  // Of an encoder, which has the same embedding.
  struct Encoder {
    std::vector<Layer> layers;
    DistanceBias distances;
    Norm final_norm;
    std::vector<Linear> memory;  // by the decoder's layer: hidden -> its keys and values of a row
  };
  std::unique_ptr<const Encoder> encoder;  // null: there is none

  // x[r] = embedding of token[r] where token[r] >= 0. x: [rows, hidden]
  void embed(at::Tensor& x, const int32_t* token) const;

  // With the first so many layers, and without an encoder.
  int64_t bytes(int first_layers) const;
  int64_t parameters(int first_layers) const;
  int64_t expanded_bytes() const;  // Linear::expanded_bytes(), an encoder's too
  int64_t encoder_bytes() const;
  int64_t encoder_parameters() const;

  // The layers' matrices and the head's once more, packed for few rows; an encoder's are not. Bytes
  // that it takes; 0: the device has no product of these.
  int64_t packed_bytes() const;
  void pack();

  // Of layers that lie on several devices: those of one. The others' places in `layers` are empty,
  // and only the first range has what lies before and behind the layers.
  struct Range {
    int begin = 0;
    int end = -1;  // -1: after all layers
  };
  // Errors as load_matrix().
  static absl::StatusOr<DecoderWeights> load(const DecoderConfig& config, bool tied,
                                             const TensorSource& source, const WeightStore& store,
                                             const Range& range = {0, -1});
};

}  // namespace tandem
