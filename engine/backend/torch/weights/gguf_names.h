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
};

std::span<const GgufArch> gguf_archs();

// "blk.3.attn_q" as "model.layers.3.self_attn.q_proj"; empty: no such part. two_norms: each layer
// has a norm for each of two parallel branches.
std::string gguf_hf_name(const GgufArch& arch, std::string_view part, bool two_norms);

}  // namespace tandem
