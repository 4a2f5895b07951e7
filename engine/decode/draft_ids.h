// Among which of a vocabulary's ids tokens are proposed.
#pragma once

#include "engine/pass/pass.h"

namespace tandem {

// Warp::vocab of proposals that are to be ids below `draft_vocabulary` (0: any): more than the
// request may ban, so that one is left.
int draft_ids(const Warp& warp, int draft_vocabulary);

}  // namespace tandem
