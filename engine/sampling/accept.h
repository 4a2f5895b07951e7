// Speculative sampling's acceptance: by match (shared draws, race.h) or by the ratio
// rule (Leviathan et al. 2023, Chen et al. 2023).
//
// A chain of drafts is walked row by row: the target's row i judges draft i, until the first
// rejection. Pure functions; random numbers and keys come in from random.h.
#pragma once

#include <cstddef>
#include <span>

#include "engine/base/ids.h"
#include "engine/sampling/random.h"

namespace tandem::sampling {

// What a draft token was drawn from.
struct DraftDist {
  std::span<const float> probs;  // [draft's vocab]; empty: one-hot on the draft itself
  // A vocabulary smaller than the target's gives the tokens it lacks 0.
  float of(Token t) const {
    if (probs.empty()) return 1;
    return static_cast<size_t>(t) < probs.size() ? probs[static_cast<size_t>(t)] : 0;
  }
};

struct Verdict {
  bool accepted = false;
  Token token = -1;  // the draft if accepted, else what stands in its place
};

// A draft stays if it is the token that the target itself draws there (greedy: its argmax).
inline Verdict judge_match(Token own, Token draft) { return {own == draft, own}; }

// Whether `draft` stays: with probability min(1, p(draft) / q(draft)).
// u: in [0, 1). p: [vocab], sums to 1.
bool accepts(std::span<const float> p, DraftDist q, Token draft, double u);

// Replaces p by max(0, p - q), not normalised, unless that is 0 everywhere (then p stays). For a
// one-hot q that is p without the draft. Returns the sum of what p is now.
double to_residual(std::span<float> p, DraftDist q, Token draft);

// Judges a draft by the ratio rule. p is overwritten if the draft is rejected.
// accept_u: in [0, 1); independent of the race under `residual`, as of the draft's own.
Verdict judge(std::span<float> p, DraftDist q, Token draft, double accept_u, RaceKey residual);

}  // namespace tandem::sampling
