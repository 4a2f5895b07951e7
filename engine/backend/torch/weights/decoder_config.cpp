#include "engine/backend/torch/weights/decoder_config.h"

#include <cmath>
#include <numbers>

namespace tandem {

DecoderConfig first_layers(DecoderConfig config, int layers) {
  config.layers = layers;
  if (!config.full_layers.empty()) config.full_layers.resize(static_cast<size_t>(layers));
  return config;
}

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    float f = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    const auto factor = static_cast<float>(rope.factor);
    if (rope.kind == RopeConfig::kLinear) {
      f /= factor;
    } else if (rope.kind == RopeConfig::kLlama3) {
      // Waves much shorter than the original context stay, much longer ones are stretched, and
      // between the two the frequency goes smoothly from one to the other.
      const auto low = static_cast<float>(rope.low_freq_factor);
      const auto high = static_cast<float>(rope.high_freq_factor);
      const auto context = static_cast<float>(rope.original_max_positions);
      const float wave = 2 * std::numbers::pi_v<float> / f;
      if (wave > context / low) {
        f /= factor;
      } else if (wave >= context / high) {
        const float smooth = (context / wave - low) / (high - low);
        f = (1 - smooth) * f / factor + smooth * f;
      }
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

}  // namespace tandem
