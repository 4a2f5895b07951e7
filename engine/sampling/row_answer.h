// What a device answers about a row of logits in place of the logits themselves: all that reads
// need which neither process nor cut them (RowReader::can_ask()).
#pragma once

#include <cstdint>

namespace tandem {

inline constexpr int kAnsweredTop = 8;  // best tokens of an answer, at most

struct RowQuestion {
  int32_t vocab = 0;              // the first so many logits count
  int32_t scored = -1;            // a token whose logit is asked for; -1: none
  int32_t top = 0;                // so many of the best, 0 to kAnsweredTop
  int32_t sums = 0;               // whether log_sum is asked for
  float inverse_temperature = 0;  // of a draw; 0: none
  uint32_t key[2] = {0, 0};       // the draw's (sampling::RaceKey)
};

// Bits as the CPU's own (warp.h, race.h).
struct RowAnswer {
  float max = 0;
  int32_t argmax = -1;  // the lowest of a tie
  int32_t valid = 0;    // 0: NaN or +Inf among the logits, or nothing but -Inf; the rest is unset
  int32_t drawn = -1;
  float drawn_logit = 0;
  float scored = 0;
  double log_sum = 0;  // sum of exp(logit - max); its logarithm is the host's to take
  double total = 0;    // sum of exp((logit - max) * inverse_temperature)
  int32_t top[kAnsweredTop];
  float top_logit[kAnsweredTop];
};

// What a row is fed with of an answer that the device has kept.
struct ChosenToken {
  static constexpr int32_t kArgmax = -1;
  static constexpr int32_t kDrawn = -2;

  int32_t answer = -1;      // its place among those kept; -1: none, the row has a token of its own
  int32_t which = kArgmax;  // or a rank among the best
};

}  // namespace tandem
