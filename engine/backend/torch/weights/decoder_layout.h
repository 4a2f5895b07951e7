// Which tensors a decoder's file has, and how they make up its layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

// Rows of a matrix that has, for each kv head, its queries, its key and its value, rather than all
// queries, all keys, all values.
struct HeadGroups {
  int groups = 0;   // kv heads; 0: rows lie in order
  int queries = 0;  // of each
  int head_dim = 0;

  int64_t stored_row(int64_t row) const;  // where a row lies in the file
};

// Matrices of one input that are side by side in one product: name + ".weight" [out, in] each
// (transposed: [in, out]), and name + ".bias" [out] if there are biases.
struct LinearSpec {
  std::vector<std::string> names;
  std::vector<int64_t> outs;  // of each
  int64_t in = 0;
  bool bias = false;
  bool transposed = false;
  HeadGroups groups = {};  // of one matrix of queries, keys and values
  bool tokens = false;     // a row for each token: rounded to fewer than 8 bits, all of them suffer
};

// name + ".weight" [width], and + ".bias" [width] of NormKind::kLayer.
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
  LinearSpec cross_q, cross_o;  // without names: no cross-attention
  LinearSpec memory;            // keys and values of what an encoder leaves
  NormSpec mlp_norm;
  LinearSpec up;  // the gate first, if there is one
  LinearSpec down;
  NormSpec mlp_output_norm;
};

LayerSpec layer_spec(const DecoderConfig& config, int layer);
LinearSpec embedding_spec(const DecoderConfig& config);  // the head too, if tied
LinearSpec head_spec(const DecoderConfig& config);       // not tied
NormSpec final_norm_spec(const DecoderConfig& config);

// Of a decoder's tensors and its encoder's all.
std::vector<TensorSpec> decoder_tensors(const DecoderConfig& config, bool tied);

struct DecoderLayout {
  DecoderNames names;      // as this file has them: with the prefix, if it has it
  bool tied = false;       // the head is the embedding
  int64_t parameters = 0;  // elements of the tensors that the model uses; a tied head counts once
};

// Checks every name, shape and type, so that reading the tensors afterwards cannot fail. As in
// Transformers, a checkpoint whose config says tied but which holds a different head is not tied,
// and rotary inv_freq buffers of old files are ignored; any other unexpected tensor is an error,
// since a model without it would not be the one that was saved.
absl::StatusOr<DecoderLayout> check_decoder(const DecoderConfig& config,
                                            const TensorSource& source);

}  // namespace tandem
