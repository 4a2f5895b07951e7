// Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023,
// algorithm 2). A small model q drafts tokens, and one pass of the large model p verifies them all.
//
// When sampling, both models draw by the same race at a position (sampling/race.h), and a draft is
// accepted if it is the token that the large model draws. So the output is that of autoregressive
// decoding under the same seed. The papers' ratio rule accepts more drafts, 1 - TV instead of at
// least (1 - TV) / (1 + TV), and gives tokens of the same distribution, but not the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/async/task.h"
#include "engine/decode/gen.h"
#include "engine/decode/pacing/pace.h"

namespace tandem {

struct AcceptanceStats;

struct SpeculativeParams {
  int draft_tokens = 4;  // gamma, the papers' K: drafts of a round. [1, ..)
  // How many of them (engine/decode/pacing). kFastest decides by time, which must not decide about
  // tokens: under the ratio rule it is kAdaptive. It drafts while one more draft pays, with the
  // small model (up to kMostOfSmall drafts) or look-ups in the own text and those of earlier
  // requests. Where the small model does not pay, it does not run.
  Pace pace = Pace::kFixed;
  // Drafting stops before the first token whose row of q, before temperature, has no probability
  // above this. 0: never; then drafts are a chain of passes. [0, 1]
  float min_draft_probability = 0;
  // Mask tokens of the small model (draft_pass.h): parallel draft tokens that follow each of its
  // own. 0: none; at most those of the adapter. Unused under the ratio rule, and with kFastest
  // where full batches make their rows dear. Unset: 1 where the deployment names an adapter.
  std::optional<int> num_masks;
  std::string adapter;  // of the mask tokens, by the deployment's name for it
  // Only ids below this are drafted, so the small model computes less of its output matrix.
  // Vocabularies made by merging have the frequent tokens first. 0: all. Unset: chosen by the
  // models; here all.
  std::optional<int> draft_vocabulary;
  // But for ids of the text (DraftWarp), which cost little where ModelShape::reads_single_ids.
  bool drafts_text_ids = true;
  enum class Acceptance : uint8_t {
    kMatch,  // x_i is accepted if the large model draws it, too
    kRatio,  // x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)), the papers' rule
  };
  Acceptance acceptance = Acceptance::kMatch;  // greedy: both are the same
  // With kFastest, the small model begins with at most this many tokens of the text, and the last
  // one: drafts need not be exact, and reading a long text may cost more than they save. [1, ..)
  int draft_context = 128;
  // The small model reads the prompt with the large one, even if it may never draft: later it would
  // cost the large model a second reading.
  bool reads_prompt_at_once = false;
  std::shared_ptr<AcceptanceStats> stats = {};  // shared by the deployment's requests; may be null
};

// The output is the large model's own, token for token. Else it has the large model's distribution
// (Leviathan, appendix A.1). Other parameters do not matter.
inline bool speculative_is_exact(const SpeculativeParams& a, bool greedy) {
  return greedy || a.acceptance == SpeculativeParams::Acceptance::kMatch;
}

Task<void> speculative(Gen g, SpeculativeParams a);

}  // namespace tandem
