// Prompt lookup: n-grams as the draft of speculative sampling, so that it needs
// no second model.
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct NgramParams {
  int draft_tokens = 4;  // drafts in a round, at most. [1, ..)
  int max_ngram = 3;     // the longest suffix of the text that is looked up. [1, kMaxNgram]
  // The number of drafts follows the accept lengths (engine/decode/judge.h), up to draft_tokens.
  bool adaptive = false;
  // As many drafts as make tokens fastest, by what is kept and what rows cost
  // (engine/decode/payoff.h): none or draft_tokens, or adaptive anything between. Of no effect
  // unless the output is EXACT: time decides about it, and must not decide about tokens.
  bool only_if_faster = false;
};

// EXACT: the target's own tokens, sampled ones under the same seed too.
Task<void> ngram(Gen g, NgramParams a);

}  // namespace tandem
