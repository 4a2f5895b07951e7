// LLM-to-SLM: docs/decoding_methods.md ("Think Big, Generate Quick", arXiv 2402.16844). The large
// model encodes the prompt once, and conditions the small one, which generates.
//
//   H = LLM(x)            the large model's hidden rows of the prompt, after some layer: [m, d_l]
//   Z = W2 relu(W1 H)     the projector, trained on the pair: [m, d_s]
//   y_t ~ SLM(Z (+) embed(x), y_<t)    fusion (+): adds Z to the prompt's embeddings, or replaces
//                                      them
//
// The small model's role states its conditioning (ConditioningEdge), so that preempted rows are
// recomputed. catch_up() submits the passes that compute H and Z.
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"
#include "engine/decode/speculative.h"

namespace tandem {

// The base: how the small model drafts, if speculative.
struct LlmToSlmParams : SpeculativeParams {
  bool speculative = false;  // the large model verifies the small one's tokens (section 4.5)
};

// LOSSY: the tokens of the conditioned small model. With `speculative`, EXACT: the large model's
// own. REQUIRES: the small role is conditioned on the large one's rows.
Task<void> llm_to_slm(Gen g, LlmToSlmParams a);

}  // namespace tandem
