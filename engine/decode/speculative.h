// Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023,
// algorithm 2). A cheap draft q proposes a run of tokens, one pass of the target p judges them all.
//
// Which drafts stay, when sampled? Draft and target draw by the same race at a position
// (sampling/race.h), so a draft is right exactly when it is the token that the target draws there.
// What comes out are the tokens that autoregressive decoding draws under the same seed. The papers'
// ratio rule keeps more drafts, 1 - TV of them against (1 - TV) / (1 + TV) at the least, and gives
// tokens of the same distribution, but not the same ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct DraftLore;

struct SpeculativeParams {
  int draft_tokens = 4;  // gamma, the papers' K: drafts in a round. [1, ..)
  // gamma follows the accept lengths, up to draft_tokens (engine/decode/judge.h).
  bool adaptive = false;
  // As many drafts as make tokens fastest, by what is kept and what rows cost: none or draft_tokens
  // (engine/decode/payoff.h), or adaptive: alone each draft is made if it pays, by the small model
  // or from n-grams (engine/decode/steering.h), in company as many as pay. Of no effect unless the
  // output is EXACT: time decides about it, and must not decide about tokens.
  bool only_if_faster = false;
  // A run ends before the first token whose row of q (before temperature) nowhere exceeds this.
  // 0: off; then drafts are a chain of passes. [0, 1]
  float min_draft_probability = 0;
  // Masks of the small model that foresee what it will say, so that its passes draft several tokens
  // (masked_draft.h): 0, none, or as many as its adapter has at most. They are used where drafts
  // are judged exactly; where each draft is steered, by requests without company alone. Unset: 1
  // where the deployment names an adapter.
  std::optional<int> num_masks;
  std::string adapter;  // where the masks are, by the name that the deployment knows
  // Drafts are ids below this alone, which spares the draft model the rest of its output matrix.
  // Vocabularies that were made by merging have the frequent tokens first. 0: all of them. Unset:
  // what suits the models, here all.
  std::optional<int> draft_vocabulary;
  enum class Acceptance : uint8_t {
    kMatch,  // x_i stays if the target draws it too
    kRatio,  // x_i stays with probability min(1, p_i(x_i) / q_i(x_i)), the papers' rule
  };
  Acceptance acceptance = Acceptance::kMatch;  // greedy: there is no difference
  // What other requests have learnt about drafts that pay; null: none has.
  std::shared_ptr<DraftLore> lore = {};
};

// Is the output the target's own, token for token? Else it is of the target's distribution
// (Leviathan, appendix A.1). Whatever the other parameters are.
inline bool speculative_is_exact(const SpeculativeParams& a, bool greedy) {
  return greedy || a.acceptance == SpeculativeParams::Acceptance::kMatch;
}

Task<void> speculative(Gen g, SpeculativeParams a);

}  // namespace tandem
