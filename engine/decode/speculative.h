// Speculative sampling: METHODS section 1 (Leviathan et al. 2023, algorithm 1; Chen et al. 2023,
// algorithm 2). A cheap draft q proposes a run of tokens, one pass of the target p judges them all.
#pragma once

#include <cstdint>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct SpeculativeParams {
  enum class Draft : uint8_t {
    kModel,  // Role::kSmall
    kNgram,  // prompt lookup (ngram.h): no second model
  };
  Draft draft = Draft::kModel;
  int draft_tokens = 4;  // gamma, the papers' K: drafts in a round. [1, ..)
  // gamma follows the accept lengths: 1 + their moving average, between 1 and draft_tokens, where
  // it begins. An accept length enters with kPaceWeight, unless the run was cut short (by
  // min_draft_probability, max_new_tokens, a stop, an n-gram that is not there) and wholly
  // accepted.
  bool adaptive = false;
  static constexpr double kPaceWeight = 0.25;
  // kModel: a run ends before the first token whose row of q (before temperature) nowhere exceeds
  // this. 0: off; then drafts are chained on the device. [0, 1]
  float min_draft_probability = 0;
  int max_ngram = 3;  // kNgram: longest suffix that is looked up. [1, kMaxNgram]
};

// Greedy: EXACT. Sampled: DISTRIBUTION (Leviathan, appendix A.1). Whatever the parameters are.
Task<void> speculative(Gen g, SpeculativeParams a);

}  // namespace tandem
