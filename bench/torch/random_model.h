// Models of real shapes with random weights in memory, for timing.
#pragma once

#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem::bench {

// The shape of models/code-large.
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

// A Llama of 110 million parameters without the embedding and head.
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

// A block type with products, and the two scales (at BlockFormat::halves) that make random codes
// values between -0.1 and 0.1.
struct RandomBlocks {
  BlockType type;
  float scale, other;
};
inline constexpr RandomBlocks kRandomBlocks[] = {
    {BlockType::kQ40, 0.01f, 0},       {BlockType::kQ41, 0.01f, -0.075f},
    {BlockType::kQ50, 0.005f, 0},      {BlockType::kQ51, 0.005f, -0.0775f},
    {BlockType::kQ80, 0.0007f, 0},     {BlockType::kQ4K, 1e-4f, 7.5e-4f},
    {BlockType::kQ5K, 5e-5f, 7.5e-4f}, {BlockType::kQ6K, 2e-5f, 0},
};

// The type's name in lower case: "q4_k".
inline std::string block_name(const RandomBlocks& blocks) {
  return absl::AsciiStrToLower(find_block_format(static_cast<uint32_t>(blocks.type))->name);
}

// Random blocks of `numbers` values, a multiple of the type's block.
inline std::vector<std::byte> random_blocks(const RandomBlocks& blocks, int64_t numbers) {
  const BlockFormat& format = *find_block_format(static_cast<uint32_t>(blocks.type));
  std::vector<std::byte> all(static_cast<size_t>(numbers / format.values * format.bytes));
  std::mt19937 random(1);
  for (size_t i = 0; i < all.size(); i += sizeof(uint32_t)) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(all.data() + i, &word, std::min(sizeof(word), all.size() - i));
  }
  const float scales[] = {blocks.scale, blocks.other};
  for (size_t at = 0; at < all.size(); at += static_cast<size_t>(format.bytes)) {
    for (size_t i = 0; i < 2; ++i) {
      const c10::Half half(scales[i]);
      if (format.halves[i] < 0) continue;
      std::memcpy(all.data() + at + format.halves[i], &half.x, sizeof(half.x));
    }
  }
  return all;
}

class RandomWeights {
 public:
  // blocks: the type of the matrices' blocks; null: fp32. REQUIRES: fits(config, *blocks)
  explicit RandomWeights(const DecoderConfig& config, const RandomBlocks* blocks = nullptr) {
    int64_t most = 0;
    for (const TensorSpec& spec : decoder_tensors(config, config.tie_word_embeddings)) {
      TensorView& view = tensors_[spec.name];
      view.shape = spec.shape;
      int64_t n = 1;
      for (const int64_t d : spec.shape) n *= d;
      view.bytes = static_cast<size_t>(n) * sizeof(float);
      most = std::max(most, n);
    }
    norm_.assign(static_cast<size_t>(config.hidden_size), 1);
    // All tensors share the same values.
    if (blocks != nullptr) {
      blocks_ = random_blocks(*blocks, most);
    } else {
      std::mt19937 random(1);
      std::normal_distribution<float> normal(0, 0.03f);
      numbers_.resize(static_cast<size_t>(most));
      for (float& x : numbers_) x = normal(random);
    }
    for (auto& [name, view] : tensors_) {
      const bool norm = name.ends_with("norm.weight");
      view.data = reinterpret_cast<const std::byte*>(norm ? norm_.data() : numbers_.data());
      if (norm || blocks == nullptr) continue;
      view.block = find_block_format(static_cast<uint32_t>(blocks->type));
      view.bytes = view.bytes / sizeof(float) / static_cast<size_t>(view.block->values) *
                   static_cast<size_t>(view.block->bytes);
      view.data = blocks_.data();
    }
  }

  // Whether all tensors are norms or matrices whose rows are whole blocks.
  static bool fits(const DecoderConfig& config, const RandomBlocks& blocks) {
    const int64_t values = find_block_format(static_cast<uint32_t>(blocks.type))->values;
    return std::ranges::all_of(decoder_tensors(config, config.tie_word_embeddings),
                               [&](const TensorSpec& spec) {
                                 return spec.name.ends_with("norm.weight") ||
                                        (spec.shape.size() == 2 && spec.shape.back() % values == 0);
                               });
  }

  TensorMap source() const { return TensorMap(tensors_); }

 private:
  std::map<std::string, TensorView> tensors_;
  std::vector<float> numbers_, norm_;
  std::vector<std::byte> blocks_;
};

}  // namespace tandem::bench
