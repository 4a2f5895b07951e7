// The weights of a decoder and its encoder, if any, in the form that products and kernels read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/model/linear.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Norms are fp32; fp64 with fp64 matrices.
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
  bool tied = false;     // the head is the embedding
  at::Tensor embedding;  // [vocab, hidden]; undefined: the head or table is looked up instead
  Linear table;          // kStored, kQ40, not tied: the embedding in blocks, or packed
  at::Tensor positions;  // [max_positions, hidden]; undefined: not learned
  std::vector<Layer> layers;
  DistanceBias distances;
  Norm final_norm;  // [hidden]
  Linear head;      // hidden -> vocab

  // An encoder, which shares the decoder's embedding.
  struct Encoder {
    std::vector<Layer> layers;
    DistanceBias distances;
    Norm final_norm;
    std::vector<Linear> memory;  // by the decoder's layer: hidden -> keys and values of a row
  };
  std::unique_ptr<const Encoder> encoder;  // null: none

  // x[r] = embedding of token[r] if token[r] >= 0. x: [rows, hidden]
  void embed(at::Tensor& x, const int32_t* token) const;

  // Of the first `first_layers` layers, without an encoder.
  int64_t bytes(int first_layers) const;
  int64_t parameters(int first_layers) const;
  int64_t expanded_bytes() const;  // Linear::expanded_bytes() of all layers and the encoder
  std::vector<std::string> expanded() const;  // likewise
  int64_t encoder_bytes() const;
  int64_t encoder_parameters() const;

  // Copies of the layers' and the head's matrices packed for few rows, without the encoder's: the
  // bytes they take, 0: the device has no such products; and making them.
  int64_t packed_bytes() const;
  void pack();

  // The layers of one of several devices. Other elements of `layers` are empty. Only the first
  // range has the embedding, final norm and head.
  struct Range {
    int begin = 0;
    int end = -1;  // -1: all further layers
  };
  // Errors as load_matrix().
  static absl::StatusOr<DecoderWeights> load(const DecoderConfig& config, bool tied,
                                             const TensorSource& source, const WeightStore& store,
                                             const Range& range = {0, -1});
};

}  // namespace tandem
