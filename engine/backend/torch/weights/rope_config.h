// Rotary position embeddings: what a model's files say of their angles.
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
  // kYarn: waves that turn so often in the original context stay, those that turn so seldom are
  // stretched; between the two lies a ramp, whose ends are whole dimensions if `truncate`.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::vector<float> stretch;   // kLongRope: of each wave, [head_dim / 2]
  double attention_factor = 1;  // of cosines and sines: kYarn, kLongRope
};

// Inverse frequencies of the rotary embedding after scaling, in the float32 arithmetic of
// Transformers. [head_dim / 2]; element i rotates dimensions i and i + head_dim / 2 by
// position * f[i].
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim);

}  // namespace tandem
