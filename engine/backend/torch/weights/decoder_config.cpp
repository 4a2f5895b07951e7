#include "engine/backend/torch/weights/decoder_config.h"

#include <algorithm>
#include <cmath>

namespace tandem {

int distance_bucket(int distance, bool both, int buckets, int max_distance) {
  int first = 0;
  int away = std::max(-distance, 0);
  if (both) {
    buckets /= 2;
    first = distance > 0 ? buckets : 0;
    away = std::abs(distance);
  }
  const int exact = buckets / 2;  // half of the buckets hold one distance each
  if (away < exact) return first + away;
  const double all = std::log(static_cast<double>(max_distance) / exact);
  const float part = std::log(static_cast<float>(away) / static_cast<float>(exact)) /
                     static_cast<float>(all) * static_cast<float>(buckets - exact);
  return first + std::min(exact + static_cast<int>(part), buckets - 1);
}

DecoderConfig first_layers(DecoderConfig config, int layers) {
  config.layers = layers;
  if (!config.full_layers.empty()) config.full_layers.resize(static_cast<size_t>(layers));
  return config;
}

}  // namespace tandem
