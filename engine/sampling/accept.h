// Acceptance of draft tokens: by match (shared draws, race.h) or by the ratio rule of speculative
// sampling (Leviathan et al. 2023, Chen et al. 2023).
//
// A chain of drafts is verified row by row: the target's row i judges draft i, up to the first
// rejection. Pure functions; random numbers and keys come from random.h.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/ids.h"
#include "engine/sampling/random.h"

namespace tandem::sampling {

// The distribution that a draft token was drawn from.
struct DraftDist {
  std::span<const float> probs;  // [draft's vocab]; empty: one-hot on the draft itself
  // 0 for tokens beyond a vocabulary that is smaller than the target's.
  float of(Token t) const {
    if (probs.empty()) return 1;
    return static_cast<size_t>(t) < probs.size() ? probs[static_cast<size_t>(t)] : 0;
  }
};

struct Verdict {
  bool accepted = false;
  Token token = -1;  // the draft if accepted, else its replacement
};

// Accepts a draft that equals the token drawn from the target (greedy: its argmax).
inline Verdict judge_match(Token own, Token draft) { return {own == draft, own}; }

// Accepts `draft` with probability min(1, p(draft) / q(draft)).
// u: in [0, 1). p: [vocab], sums to 1.
bool accepts(std::span<const float> p, DraftDist q, Token draft, double u);

// Replaces p by max(0, p - q), not normalised. If that is 0 everywhere, p stays unchanged. For a
// one-hot q, this is p without the draft. Returns the sum of the result.
double to_residual(std::span<float> p, DraftDist q, Token draft);

// Judges a draft by the ratio rule. p is overwritten if the draft is rejected.
// accept_u: in [0, 1), independent of the races under `residual` and of the draft.
Verdict judge(std::span<float> p, DraftDist q, Token draft, double accept_u, RaceKey residual);

}  // namespace tandem::sampling
