// BiLD, the big-little decoder (Kim et al. 2023, "Speculative Decoding with Big
// Little Decoder"). A small model drafts, falls back to the large one where its confidence is low
// (equation 2), and is rolled back where the large one disagrees (equation 3).
//
// Early exit (section 4.4): the roles kSmall and kLarge are stages of one cache. Verification then
// continues the small model's rows from their hidden states and runs only the upper layers.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// The longest run of small tokens. One pass of the large model verifies a run, so its rows must fit
// into a batch. With early exit they lie between two layers until then.
inline constexpr int kLongestRun = 256;

struct BildParams {
  // alpha_FB: falls back where the small model's largest probability is below. [0, 2]; 0: never,
  // above 1: always.
  float fallback_threshold = 0.6F;
  // alpha_RB: rolls back a small token whose cross-entropy under the large model is above (nats).
  // [0, +inf]; +inf: never.
  float rollback_threshold = 5;
  int max_small_run = 10;  // small tokens between two large passes; 0 or above kLongestRun: that
  bool verify_eos = true;  // false: an end token of the small model ends the request unverified
  // Mask tokens of the small model, so that one pass produces several tokens (draft_pass.h). They
  // do not change its tokens. Unset: 1 where the deployment names an adapter; none with early exit.
  std::optional<int> num_masks;
  std::string adapter;  // of the mask tokens, by the deployment's name for it
  // Where it is exact, as in SpeculativeParams. 0: all.
  int draft_vocabulary = 0;
  bool drafts_text_ids = true;
  std::optional<int> window;  // ablation: runs of this length instead of fallback. [1, ..)
};

// Places in MethodStats::own.
struct BildFigures {
  static constexpr size_t kFallbacks = 0;    // the small model fell back
  static constexpr size_t kForcedCalls = 1;  // a small run reached max_small_run
  static constexpr size_t kRollbacks = 2;    // the large model replaced a small token
  static constexpr size_t kRolledBackTokens =
      3;  // small tokens dropped, including the replaced one
};

// Whether the output is the large model's own (docs/decoding_methods.md, "BiLD"). Else it is LOSSY.
//
// Greedy with verify_eos and alpha_RB < ln 2: a token that is not large's argmax has at most half
// of the probability. Its cross-entropy is at least ln 2 > alpha_RB, so it is rolled back. Accepted
// tokens and replacements are the large model's argmax.
// alpha_FB > 1 without a window: no probability reaches it, so the large model draws every token,
// also when sampling.
bool bild_is_exact(const BildParams& a, bool greedy);

// The most small tokens between two large passes.
int longest_small_run(const BildParams& a);

Task<void> bild(Gen g, BildParams a);

}  // namespace tandem
