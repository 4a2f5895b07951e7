// The vocabulary ids among which tokens are drafted.
#pragma once

#include "engine/pass/pass.h"

namespace tandem {

// Warp::vocab of drafts with ids below `draft_vocabulary` (0: all). At least one id more than the
// request may ban.
int draft_ids(const Warp& warp, int draft_vocabulary);

}  // namespace tandem
