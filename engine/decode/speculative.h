// Speculative sampling: METHODS section 1 (Leviathan et al. 2023, algorithm 1; Chen et al. 2023,
// algorithm 2). A cheap draft q proposes a run of tokens, one pass of the target p judges them all.
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct SpeculativeParams {
  int draft_tokens = 4;  // gamma, the papers' K: drafts in a round. [1, ..)
  // gamma follows the accept lengths, up to draft_tokens (engine/decode/judge.h).
  bool adaptive = false;
  // Rounds without drafts where these make tokens no faster (engine/decode/payoff.h). Of no effect
  // unless the output is EXACT: time decides about it, and must not decide about tokens.
  bool only_if_faster = false;
  // A run ends before the first token whose row of q (before temperature) nowhere exceeds this.
  // 0: off; then drafts are chained on the device. [0, 1]
  float min_draft_probability = 0;
};

// Greedy: EXACT. Sampled: DISTRIBUTION (Leviathan, appendix A.1). Whatever the parameters are.
Task<void> speculative(Gen g, SpeculativeParams a);

}  // namespace tandem
