// Verification of draft tokens in one pass of the large model, for all methods that draft a chain.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/base/outcome.h"
#include "engine/decode/gen.h"

namespace tandem {

// x_1 .. x_gamma and, for the ratio rule, the distributions q_1 .. q_gamma that they were drawn
// from.
struct Drafts {
  std::vector<In> x;
  DistRef q;
  std::vector<Provenance> by;  // of each token; empty: verify_drafts()'s drafter

  int size() const { return static_cast<int>(x.size()); }
  void add(In token, TicketId dist);  // dist: 0 if no distribution is kept
};

inline constexpr int kMostForced = 16;  // drafts of a round by a constraint
// Drafts that a constraint forces (Gen::forced()).
Drafts forced_drafts(const std::vector<Token>& tokens);

struct Verified {
  int accepted = 0;    // drafts
  bool ended = false;  // the request
};

// Computes p_1 .. p_{gamma+1} in one pass of Role::kLarge. Emits the accepted drafts and one token
// of the large model, and rolls its cache back to these. With drafts.q the ratio rule decides;
// without, a draft is accepted if the large model draws the same token. `drafter`: what proposed
// the drafts. REQUIRES: a round that holds the drafts' rows.
Task<Verified> verify_drafts(Gen g, Drafts drafts, Source drafter);

}  // namespace tandem
