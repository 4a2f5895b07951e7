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
  int draft_tokens = 4;   // gamma, the papers' K: drafts in a round, at most. [1, ..)
  bool adaptive = false;  // gamma follows the accept lengths, between 1 and draft_tokens
  // kModel: a run ends before the first token whose row of q (before temperature) nowhere exceeds
  // this. 0: off; then drafts are chained on the device. [0, 1]
  float min_draft_probability = 0;
  int max_ngram = 3;  // kNgram: longest suffix that is looked up. [1, kMaxNgram]
};

// Greedy: EXACT. Sampled: DISTRIBUTION (Leviathan, appendix A.1). Whatever the parameters are.
Task<void> speculative(Gen g, SpeculativeParams a);

}  // namespace tandem
