// A device's answer about a row of logits, in place of the logits: all that reads without
// processors, truncation and kept distributions need (RowReader::can_ask()).
#pragma once

#include <cstdint>

namespace tandem {

inline constexpr int kAnsweredTop = 8;  // most `top` tokens of an answer

struct RowQuestion {
  int32_t vocab = 0;              // number of leading logits to read
  int32_t scored = -1;            // token whose logit is returned; -1: none
  int32_t top = 0;                // number of best tokens, 0 to kAnsweredTop
  int32_t sums = 0;               // 1: log_sum is returned
  float inverse_temperature = 0;  // of a draw; 0: none
  uint32_t key[2] = {0, 0};       // the draw's (sampling::RaceKey)
};

// Bit-identical to the CPU's results (warp.h, race.h).
struct RowAnswer {
  float max = 0;
  int32_t argmax = -1;  // the lowest of a tie
  int32_t valid = 0;    // 0: NaN or +Inf among the logits, or nothing but -Inf; the rest is unset
  int32_t drawn = -1;
  float drawn_logit = 0;
  float scored = 0;
  double log_sum = 0;  // sum of exp(logit - max); the host takes the logarithm
  double total = 0;    // sum of exp((logit - max) * inverse_temperature)
  int32_t top[kAnsweredTop];
  float top_logit[kAnsweredTop];
};

// An input token taken from an answer that the device retains.
struct ChosenToken {
  static constexpr int32_t kArgmax = -1;
  static constexpr int32_t kDrawn = -2;

  int32_t answer = -1;      // index among the retained answers; -1: none, the token is given
  int32_t which = kArgmax;  // or a rank in RowAnswer::top
};

}  // namespace tandem
