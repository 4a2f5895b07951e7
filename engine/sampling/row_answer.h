// A device's answer about a row of logits, in place of the logits: all that reads need without
// constraints, typical_p, kept distributions and raw log-probabilities behind processors
// (RowReader::can_ask()).
#pragma once

#include <cstdint>
#include <limits>

namespace tandem {

inline constexpr int kAnsweredTop = 8;  // most `top` tokens of an answer

// What logits processors do to one logit of a row (processors.h).
struct RowChange {
  int32_t token = 0;   // below RowQuestion::vocab; at most one change of a row per token
  float bias = -0.0f;  // added; -Inf: banned
  int32_t count = -1;  // in the answer; 0: in the prompt alone; -1: in neither, so no penalty
};

struct RowQuestion {
  static constexpr double kNoReach = 1;

  int32_t vocab = 0;              // number of leading logits to read
  int32_t scored = -1;            // token whose logit is returned; -1: none
  int32_t top = 0;                // number of best tokens, 0 to kAnsweredTop
  int32_t sums = 0;               // 1: log_sum is returned
  float inverse_temperature = 0;  // of a draw; 0: none
  uint32_t key[2] = {0, 0};       // the draw's (sampling::RaceKey)
  // Of a draw: sampling::Cuts. Off: 0, 1, kNoReach.
  int32_t top_k = 0;
  double min_reach = kNoReach;
  float top_p = 1;
  // Penalties, as in Processors.
  float repetition = 1;
  float frequency = 0;
  float presence = 0;
  // Among the step's changes: those of this row, made before all else.
  int32_t first_change = 0;
  int32_t changes = 0;
  // Among the step's drafts: tokens of the answer that the changes do not count, at most
  // kMostRowDrafts.
  int32_t first_draft = 0;
  int32_t drafts = 0;

  bool truncates() const { return top_k > 0 || top_p < 1 || min_reach != kNoReach; }
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
  double total = 0;    // sum of exp((logit - max) * inverse_temperature) over the survivors
  int32_t top[kAnsweredTop];
  float top_logit[kAnsweredTop];
  // The survivors of truncation: sampling::Warped.
  float cut = -std::numeric_limits<float>::infinity();
  int32_t cut_id = std::numeric_limits<int32_t>::max();
};

inline constexpr int kMostRowDrafts = 32;

// A token taken from an answer that the device retains.
struct ChosenToken {
  static constexpr int32_t kArgmax = -1;
  static constexpr int32_t kDrawn = -2;

  int32_t answer = -1;      // index among the retained answers; -1: none, the token is given
  int32_t which = kArgmax;  // or a rank in RowAnswer::top

  // -1: the answer is not valid.
  int32_t of(const RowAnswer& a) const {
    if (a.valid == 0) return -1;
    return which == kArgmax ? a.argmax : which == kDrawn ? a.drawn : a.top[which];
  }
};

// The changes and drafts of a step's rows.
struct RowChanges {
  const RowChange* changes = nullptr;
  const ChosenToken* drafts = nullptr;
  const RowAnswer* kept = nullptr;  // that `drafts` name
};

}  // namespace tandem
