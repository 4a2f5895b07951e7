// LLM-to-SLM, of the paper "Think Big, Generate Quick: LLM-to-SLM" (2402.16844): the large
// model reads the prompt once, and the small one writes.
//
//   H = LLM(x)            the large model's hidden rows of the prompt, after some layer: [m, d_l]
//   Z = W2 relu(W1 H)     the projector, trained on the pair: [m, d_s]
//   y_t ~ SLM(Z (+) embed(x), y_<t)    fusion (+): Z beside the prompt's embeddings, or in their
//                                      place
//
// What the small model is fed with is said by the cast (ConditioningEdge), so that it comes back
// after an eviction as it came first; the passes that make H and Z are asked for by catch_up.
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct LlmToSlmParams {
  bool speculative = false;  // the large model verifies what the small one writes (section 4.5)
  int draft_tokens = 4;      // then, in a round
};

// LOSSY: the tokens are those of the small model that was told what the large one makes of the
// prompt; or, `speculative`, EXACT: the large model's own. REQUIRES: the small role is fed with the
// large one's rows.
Task<void> llm_to_slm(Gen g, LlmToSlmParams a);

}  // namespace tandem
