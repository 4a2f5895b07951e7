// BiLD, the big-little decoder (Kim et al. 2023, "Speculative Decoding with Big
// Little Decoder"). A small model runs on its own; it falls back to the large one where it is not
// sure (equation 2), and the large one rolls it back where it strays (equation 3).
//
// Early exit (section 4.4): the roles kSmall and kLarge are stages of one cache. Then verification
// continues small's rows from their hidden states and runs the upper layers only.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// The longest run of small tokens. Large verifies a run in one pass: so many rows and answers have
// to fit into a batch, and with early exit they lie between two layers until then.
inline constexpr int kLongestRun = 256;

struct BildParams {
  // alpha_FB: small's proposal is dropped where its largest probability is below. [0, 2]; 0: never,
  // above 1: always.
  float fallback_threshold = 0.6F;
  // alpha_RB: a small token goes where its cross-entropy under large is above (nats). [0, +inf];
  // +inf: never.
  float rollback_threshold = 5;
  int max_small_run = 10;  // small tokens between two large passes; 0, or above: kLongestRun
  bool verify_eos = true;  // off: an end token of small's ends the request unchecked
  // Masks of the small model that foresee what it will say, so that its passes say several tokens
  // (masked_draft.h). Whatever they are, its tokens are the same. Unset: 1 where the deployment
  // names an adapter; none with early exit.
  std::optional<int> num_masks;
  std::string adapter;        // where the masks are, by the name that the deployment knows
  std::optional<int> window;  // ablation: runs of just so many tokens, instead of fallback. [1, ..)
};

// Its own figures: places in MethodStats::own.
struct BildFigures {
  static constexpr size_t kFallbacks = 0;         // small dropped its proposal
  static constexpr size_t kForcedCalls = 1;       // a small run reached max_small_run
  static constexpr size_t kRollbacks = 2;         // large replaced a small token
  static constexpr size_t kRolledBackTokens = 3;  // small tokens dropped, the replaced one included
};

// Is the output large's own? See docs/decoding_methods.md. Else it is LOSSY.
//
// Greedy with verify_eos and alpha_RB < ln 2: a token that is not large's argmax has at most half
// of the probability, p(token) <= p(argmax) and both <= 1 together, so its cross-entropy is at
// least ln 2 > alpha_RB, and it is rolled back. What stays, and what large puts in its place, is
// large's argmax.
// alpha_FB > 1 without a window: no probability reaches it, every token is drawn by large as AR
// draws it. Sampled too.
bool bild_is_exact(const BildParams& a, bool greedy);

// Small tokens between two large passes, at most.
int longest_small_run(const BildParams& a);

Task<void> bild(Gen g, BildParams a);

}  // namespace tandem
