// What there is to know of a transformer before its weights are read, whatever file it was written
// in: a decoder, or an encoder and the decoder that reads what it leaves.
//
//   x = embed(token) * embedding_scale (+ embed(position))
//   each layer: x += attention(norm(x));  x += mlp(norm(x)), of each output its norm where the
//               names tell of one; in parallel blocks x += attention(norm(x)) + mlp(norm(x))
//   logits = head(norm(x))
//
// A decoder with an encoder has x += cross_attention(norm(x)) between the two, over keys and values
// of norm(x) of the encoder's last layer: its memory. The encoder is such a stack as well, whose
// rows all see each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/torch/kinds.h"
#include "engine/backend/torch/weights/rope_config.h"
#include "engine/backend/torch/weights/safetensors.h"
#include "engine/base/ids.h"

namespace tandem {

// What a file calls its tensors, without ".weight" and ".bias". An empty name: there is none. Those
// between `layer` and `final_norm` follow "{layer}{i}.".
struct DecoderNames {
  std::string embedding = "model.embed_tokens";
  std::string positions;  // learned positions, added to the embedding
  std::string layer = "model.layers.";
  std::string attention_norm = "input_layernorm";
  // Three matrices, or one that has the rows of all.
  std::vector<std::string> qkv{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  std::string q_norm, k_norm;  // of each head, before the rotary embedding
  std::string o = "self_attn.o_proj";
  std::string attention_output_norm;
  std::string cross_norm, cross_q, cross_o;  // of layers that read an encoder's memory, and
  std::vector<std::string> cross_kv;         // what makes it: two matrices
  std::string mlp_norm = "post_attention_layernorm";  // of parallel blocks may be none: attention's
  // Gated: two matrices, or one that has the gate's rows first. Plain: one.
  std::vector<std::string> up{"mlp.gate_proj", "mlp.up_proj"};
  std::string down = "mlp.down_proj";
  std::string mlp_output_norm;
  std::string final_norm = "model.norm";
  std::string head = "lm_head";
  std::string distance_bias;        // [buckets, heads], by distance between key and query
  std::vector<std::string> copies;  // of the embedding: may be there, and are equal then
  bool transposed = false;          // the layers' matrices lie as [in, out]
  bool grouped = false;             // the one of qkv has each kv head's queries, its key, its value
  std::vector<std::string> ignored;  // ends of names of tensors that follow from the rest
  std::string prefix;                // that names may all lack, or have: "transformer."
};

// Matrices of 4-bit integers with scales (packed_ints.h).
struct PackedInts {
  enum class Method : uint8_t { kGptq, kCompressedTensors };
  Method method = Method::kGptq;
  int64_t group = 128;  // inputs of a scale; 0: all
  int zero = 8;         // GPTQ: as what the file has the 8 that is taken off, 7 or 8
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
  bool gated = true;      // mlp(x) = down(act(gate(x)) * up(x)), else down(act(up(x)))
  bool parallel = false;  // attention and mlp read the same x
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;  // of all two or three
  double embedding_scale = 1;
  double attention_scale = 0;  // of scores; 0: head_dim^-0.5

  bool rotary = true;  // of even head_dim
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of layers with the window, if another
  // T5: scores get a number by the bucket of the key's distance; beyond max_distance it stays.
  int distance_buckets = 0;  // 0: none
  int max_distance = 0;
  int window = 0;                 // in rows, the row itself included; 0: none
  std::vector<bool> full_layers;  // layers that see everything; empty: all have the window

  bool tie_word_embeddings = false;
  double output_scale = 1;                       // of the last norm's outputs
  std::shared_ptr<const DecoderConfig> encoder;  // null: there is none. Shares the embedding
  Token start_token = 0;                         // what a decoder with an encoder is fed first
  DecoderNames names;
  std::optional<SafeDType> dtype;         // kF32, kBF16, kF16 or kF64, if the file says
  std::optional<PackedInts> packed_ints;  // instead, of most matrices
  std::vector<Token> eos_token_ids;       // may be empty
  std::optional<Token> bos_token_id;

  int window_of(int layer) const {
    return !full_layers.empty() && full_layers[static_cast<size_t>(layer)] ? 0 : window;
  }
  bool has_cross_attention() const { return encoder != nullptr; }
  bool fused_qkv() const { return names.qkv.size() == 1; }
};

// Of a key that stands `distance` rows behind the query (before it: negative), as Transformers has
// them in float32. both: an encoder's, whose rows see what is behind them, too.
int distance_bucket(int distance, bool both, int buckets, int max_distance);

// The same with the first `layers` layers only. REQUIRES: 1 <= layers <= config.layers.
DecoderConfig first_layers(DecoderConfig config, int layers);

}  // namespace tandem
