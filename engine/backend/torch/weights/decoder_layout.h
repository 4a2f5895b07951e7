// The tensors of a decoder's file, and the layers that they form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Row order of a fused matrix that has, for each kv head, its queries, its key and its value,
// instead of all queries, all keys and all values.
struct HeadGroups {
  int groups = 0;   // kv heads; 0: rows are in order
  int queries = 0;  // per group
  int head_dim = 0;

  int64_t stored_row(int64_t row) const;  // row of the file that holds row `row`
};

// Matrices with the same input, computed as one product: name + ".weight" [out, in] each
// (transposed: [in, out]) and, with biases, name + ".bias" [out].
struct LinearSpec {
  std::vector<std::string> names;
  std::vector<int64_t> outs;  // per matrix
  int64_t in = 0;
  bool bias = false;
  bool transposed = false;
  HeadGroups groups = {};  // of a fused matrix of queries, keys and values
  bool tokens = false;     // a row per token: sensitive to fewer than 8 bits
};

// name + ".weight" [width], and name + ".bias" [width] for NormKind::kLayer.
struct NormSpec {
  std::string name;  // empty: no norm
  int64_t width = 0;
};

struct LayerSpec {
  NormSpec attention_norm;
  LinearSpec qkv;  // queries, keys, values
  NormSpec q_norm, k_norm;
  LinearSpec o;
  NormSpec attention_output_norm;
  NormSpec cross_norm;
  LinearSpec cross_q, cross_o;  // no names: no cross-attention
  LinearSpec memory;            // keys and values of encoder states
  NormSpec mlp_norm;
  LinearSpec up;  // gate first, if any
  LinearSpec down;
  NormSpec mlp_output_norm;
};

LayerSpec layer_spec(const DecoderConfig& config, int layer);
LinearSpec embedding_spec(const DecoderConfig& config);  // also the head, if tied
LinearSpec head_spec(const DecoderConfig& config);       // if not tied
NormSpec final_norm_spec(const DecoderConfig& config);

// All tensors of a decoder and its encoder.
std::vector<TensorSpec> decoder_tensors(const DecoderConfig& config, bool tied);

struct DecoderLayout {
  DecoderNames names;      // as in this file, including its prefix
  bool tied = false;       // the head is the embedding
  int64_t parameters = 0;  // elements of the tensors in use; a tied head counts once
};

// Checks every name, shape and type, so that reading the tensors afterwards cannot fail. As in
// Transformers, a checkpoint with tie_word_embeddings and a different head is not tied, and rotary
// inv_freq buffers of old files are ignored. Any other unexpected tensor is an error, because the
// model without it would differ from the saved one.
absl::StatusOr<DecoderLayout> check_decoder(const DecoderConfig& config,
                                            const TensorSource& source);

}  // namespace tandem
