// Parameters of rotary position embeddings.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

struct RopeConfig {
  enum Kind : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongRope };
  Kind kind = kDefault;
  double theta = 10000;
  double factor = 1;                   // kLinear, kLlama3, kYarn
  double low_freq_factor = 1;          // kLlama3
  double high_freq_factor = 4;         // kLlama3
  int64_t original_max_positions = 0;  // kLlama3, kYarn, kLongRope
  // kYarn: dimensions with at least beta_fast turns over the original context keep their frequency,
  // those with at most beta_slow are interpolated, with a linear ramp in between. truncate: the
  // ramp's ends are rounded to whole dimensions.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::vector<float> stretch;   // kLongRope: divisor per frequency, [head_dim / 2]
  double attention_factor = 1;  // kYarn, kLongRope: scales cosines and sines
};

// Inverse frequencies after scaling, in Transformers' float32 arithmetic. [head_dim / 2]; element i
// rotates dimensions i and i + head_dim / 2 by position * f[i].
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim);

}  // namespace tandem
