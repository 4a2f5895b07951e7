// The architectures of GGUF files, and what ggml and Transformers call their tensors.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tandem {

struct GgufArch {
  struct Part {
    std::string_view gguf, hf;
  };
  const char* gguf;        // general.architecture, and the prefix of its keys
  const char* model_type;  // of config.json
  const char* name;
  bool permuted = false;      // rows of q and k
  bool norms_plus_1 = false;  // of Gemma, which also has norms after attention and MLP
  bool rms = true;            // else layer norms
  // Without ".weight" and ".bias": of the model, and of a layer behind hf_layer and its number.
  std::span<const Part> parts, layer_parts;
  std::string_view hf_layer;
  std::string_view layer = "blk.";
  // The same of an encoder, which has layers of its own; empty: there is none.
  std::span<const Part> encoder_parts;
  std::string_view hf_encoder_layer, encoder_layer;
};

// What the tensors of one file say of all its layers.
struct GgufVariant {
  bool two_norms = false;  // one for each of two parallel branches
  bool gated = false;      // T5: an MLP of two matrices
};

std::span<const GgufArch> gguf_archs();

// "blk.3.attn_q" as "model.layers.3.self_attn.q_proj"; empty: no such part.
std::string gguf_hf_name(const GgufArch& arch, std::string_view part, const GgufVariant& variant);

}  // namespace tandem
