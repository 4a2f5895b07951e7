#include "engine/backend/torch/weights/rope_config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace tandem {
namespace {

// Llama 3.1: wavelengths much shorter than the original context are kept, much longer ones are
// scaled, with a smooth transition in between.
float llama3_frequency(const RopeConfig& rope, float f) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto context = static_cast<float>(rope.original_max_positions);
  const float wave = 2 * std::numbers::pi_v<float> / f;
  if (wave > context / low) return f / factor;
  if (wave < context / high) return f;
  const float smooth = (context / wave - low) / (high - low);
  return (1 - smooth) * f / factor + smooth * f;
}

// YaRN (arXiv:2309.00071, section 3.2). The ramp is over dimensions rather than wavelengths, as in
// the authors' code.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& rope, int head_dim) {
    const double context = static_cast<double>(rope.original_max_positions);
    // Dimension with `times` turns over the original context.
    const auto turning = [&](double times) {
      return head_dim * std::log(context / (times * 2 * std::numbers::pi)) /
             (2 * std::log(rope.theta));
    };
    double low = turning(rope.beta_fast);
    double high = turning(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(head_dim - 1));
    if (low == high) high += 0.001;
    low_ = static_cast<float>(low);
    span_ = static_cast<float>(high - low);
  }

  // Share of interpolation for dimension pair i, from 0 to 1.
  float stretched(int i) const {
    return std::clamp((static_cast<float>(i) - low_) / span_, 0.0f, 1.0f);
  }

 private:
  float low_, span_;
};

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> frequencies;
  std::optional<YarnRamp> ramp;
  if (rope.kind == RopeConfig::kYarn) ramp.emplace(rope, head_dim);
  const auto factor = static_cast<float>(rope.factor);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float wave = std::pow(static_cast<float>(rope.theta), exponent);
    float f = 1.0f / wave;
    switch (rope.kind) {
      case RopeConfig::kDefault:
        break;
      case RopeConfig::kLinear:
        f /= factor;
        break;
      case RopeConfig::kLlama3:
        f = llama3_frequency(rope, f);
        break;
      case RopeConfig::kYarn: {
        const float kept = 1 - ramp->stretched(i);
        f = 1.0f / (factor * wave) * (1 - kept) + f * kept;
        break;
      }
      case RopeConfig::kLongRope:
        f = 1.0f / (rope.stretch[static_cast<size_t>(i)] * wave);
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

}  // namespace tandem
