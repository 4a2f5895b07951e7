// Model configuration, independent of the file format: a decoder, or an encoder and a decoder with
// cross-attention.
//
//   x = embed(token) * embedding_scale (+ embed(position))
//   each layer: x += attention(norm(x)); x += mlp(norm(x)), each output normalized if the names
//               include an output norm. Parallel blocks: x += attention(norm(x)) + mlp(norm(x))
//   logits = head(norm(x))
//
// With an encoder, each decoder layer computes x += cross_attention(norm(x)) between the two, over
// keys and values of the encoder states: the normalized output of the encoder's last layer. The
// encoder is such a stack too, with bidirectional attention.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/torch/kinds.h"
#include "engine/backend/torch/weights/rope_config.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "engine/base/ids.h"

namespace tandem {

// Tensor names of a file, without ".weight" and ".bias". Empty: no such tensor. Names from `layer`
// to `final_norm` follow "{layer}{i}.".
struct DecoderNames {
  std::string embedding = "model.embed_tokens";
  std::string positions;  // learned positions, added to the embedding
  std::string layer = "model.layers.";
  std::string attention_norm = "input_layernorm";
  // Three matrices, or a fused one.
  std::vector<std::string> qkv{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  std::string q_norm, k_norm;  // per head, before the rotary embedding
  std::string o = "self_attn.o_proj";
  std::string attention_output_norm;
  std::string cross_norm, cross_q, cross_o;           // cross-attention
  std::vector<std::string> cross_kv;                  // keys and values of encoder states
  std::string mlp_norm = "post_attention_layernorm";  // parallel: or none
  // Gated: two matrices, or a fused one with the gate first. Plain: one.
  std::vector<std::string> up{"mlp.gate_proj", "mlp.up_proj"};
  std::string down = "mlp.down_proj";
  std::string mlp_output_norm;
  std::string final_norm = "model.norm";
  std::string head = "lm_head";
  std::string distance_bias;         // [buckets, heads], by distance between key and query
  std::vector<std::string> copies;   // optional copies of the embedding; must be equal
  bool transposed = false;           // the layers' matrices are stored as [in, out]
  bool grouped = false;              // fused qkv: queries, key and value of each kv head in turn
  std::vector<std::string> ignored;  // suffixes of redundant tensors
  std::string prefix;                // common optional prefix: "transformer."
};

// Matrices of 4-bit integers with scales (safetensors/packed_ints.h).
struct PackedInts {
  enum class Method : uint8_t { kGptq, kCompressedTensors };
  Method method = Method::kGptq;
  int64_t group = 128;  // inputs per scale; 0: all
  int zero = 8;         // GPTQ: the stored zero point, 7 or 8, that stands for 8
};

struct DecoderConfig {
  std::string model_type;    // "llama", "mistral", ...
  std::string architecture;  // "LlamaForCausalLM", ...
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // heads * head_dim need not be hidden_size
  int max_positions = 0;

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  bool one_plus_weight = false;  // norms multiply with 1 + weight
  Activation activation = Activation::kSilu;
  bool gated = true;      // mlp(x) = down(act(gate(x)) * up(x)); otherwise down(act(up(x)))
  bool parallel = false;  // attention and mlp have the same input
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;  // of all matrices of the MLP
  double embedding_scale = 1;
  double attention_scale = 0;  // of scores; 0: head_dim^-0.5

  bool rotary = true;  // requires an even head_dim
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // for layers with the window, if different
  // T5: distance bias per bucket. Distances from max_distance on share a bucket.
  int distance_buckets = 0;  // 0: none
  int max_distance = 0;
  int window = 0;                 // in rows, including the current one; 0: none
  std::vector<bool> full_layers;  // layers with global attention; empty: all layers have the window
  bool bidirectional = false;     // rows see all others, within the window on both sides
  bool headless = false;          // a file of the base model, without the output matrix

  bool tie_word_embeddings = false;
  double output_scale = 1;                       // applied to the last norm's output
  std::shared_ptr<const DecoderConfig> encoder;  // null: none. Shares the embedding
  Token start_token = 0;                         // first token of a decoder with an encoder
  DecoderNames names;
  std::optional<SafeDType> dtype;         // kF32, kBF16, kF16 or kF64, if specified
  std::optional<PackedInts> packed_ints;  // instead of dtype, for most matrices
  std::vector<Token> eos_token_ids;       // may be empty
  std::optional<Token> bos_token_id;

  int window_of(int layer) const {
    return !full_layers.empty() && full_layers[static_cast<size_t>(layer)] ? 0 : window;
  }
  bool has_cross_attention() const { return encoder != nullptr; }
  bool fused_qkv() const { return names.qkv.size() == 1; }
};

// T5's bucket of a key `distance` rows after the query (negative: before), as Transformers computes
// it in float32. both: bidirectional (encoder).
int distance_bucket(int distance, bool both, int buckets, int max_distance);

// The same model with its first `layers` layers. REQUIRES: 1 <= layers <= config.layers.
DecoderConfig first_layers(DecoderConfig config, int layers);

}  // namespace tandem
