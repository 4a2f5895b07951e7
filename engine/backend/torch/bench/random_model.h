// Models of real shapes with random weights that exist in memory only: what they answer is noise,
// what they cost is not.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem::bench {

// Of models/code-large.
inline DecoderConfig code_large() {
  DecoderConfig c;
  c.model_type = "llama";
  c.architecture = "LlamaForCausalLM";
  c.vocab_size = 4096;
  c.hidden_size = 320;
  c.intermediate_size = 864;
  c.layers = 8;
  c.heads = 5;
  c.kv_heads = 1;
  c.head_dim = 64;
  c.tie_word_embeddings = true;
  c.max_positions = 1 << 20;
  return c;
}

// 110 million parameters beside the vocabulary's.
inline DecoderConfig llama_110m() {
  DecoderConfig c = code_large();
  c.vocab_size = 32000;
  c.hidden_size = 768;
  c.intermediate_size = 2048;
  c.layers = 12;
  c.heads = 12;
  c.kv_heads = 12;
  c.tie_word_embeddings = false;
  return c;
}

class RandomWeights {
 public:
  explicit RandomWeights(const DecoderConfig& config) {
    int64_t most = 0;
    for (const TensorSpec& spec : decoder_tensors(config, config.tie_word_embeddings)) {
      TensorView& view = tensors_[spec.name];
      view.shape = spec.shape;
      int64_t n = 1;
      for (const int64_t d : spec.shape) n *= d;
      view.bytes = static_cast<size_t>(n) * sizeof(float);
      most = std::max(most, n);
    }
    // All tensors begin with the same numbers: what is loaded are copies.
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.03f);
    numbers_.resize(static_cast<size_t>(most));
    for (float& x : numbers_) x = normal(random);
    norm_.assign(static_cast<size_t>(config.hidden_size), 1);
    for (auto& [name, view] : tensors_) {
      const bool norm = name.ends_with("norm.weight");
      view.data = reinterpret_cast<const std::byte*>(norm ? norm_.data() : numbers_.data());
    }
  }

  TensorMap source() const { return TensorMap(tensors_); }

 private:
  std::map<std::string, TensorView> tensors_;
  std::vector<float> numbers_, norm_;
};

}  // namespace tandem::bench
