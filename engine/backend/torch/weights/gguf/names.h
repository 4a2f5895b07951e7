// GGUF architectures, and the mapping from ggml's to Transformers' tensor names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tandem {

// EmbeddingGemma: Gemma 3 without output matrix, with bidirectional attention, and with Dense
// modules behind the pooling if the converter was told to keep them.
inline constexpr char kEmbeddingGemma[] = "gemma-embedding";

struct GgufArch {
  struct Part {
    std::string_view gguf, hf;
  };
  const char* gguf;        // general.architecture, and the prefix of its keys
  const char* model_type;  // in config.json
  const char* name;
  bool permuted = false;      // rows of q and k are permuted
  bool norms_plus_1 = false;  // Gemma; also has norms after attention and MLP
  bool rms = true;            // RMS norms; otherwise layer norms
  // Names without ".weight" and ".bias". layer_parts: after hf_layer and the layer number;
  // more_layer_parts is searched first.
  std::span<const Part> parts, layer_parts, more_layer_parts;
  std::string_view hf_layer;
  std::string_view layer = "blk.";
  // The same for an encoder; empty: none.
  std::span<const Part> encoder_parts;
  std::string_view hf_encoder_layer, encoder_layer;
};

// Properties of a file that affect the names of all layers.
struct GgufVariant {
  bool two_norms = false;  // parallel blocks with a norm per branch
  bool gated = false;      // T5: gated MLP
};

std::span<const GgufArch> gguf_archs();

// "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; empty: no such part.
std::string gguf_hf_name(const GgufArch& arch, std::string_view part, const GgufVariant& variant);

}  // namespace tandem
