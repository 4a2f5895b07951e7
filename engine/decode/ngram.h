// Prompt lookup: earlier text as the draft of speculative sampling, without a second model.
#pragma once

#include <memory>

#include "engine/async/task.h"
#include "engine/decode/gen.h"
#include "engine/decode/pacing/pace.h"

namespace tandem {

struct AcceptanceStats;

struct NgramParams {
  int draft_tokens = 4;      // drafts of a round, at most. [1, ..)
  int max_ngram = 64;        // the longest suffix of the text that is looked up. [1, kMaxNgram]
  Pace pace = Pace::kFixed;  // how many drafts (engine/decode/pacing)
  std::shared_ptr<AcceptanceStats> stats = {};  // shared by the deployment's requests; may be null
};

// EXACT: the large model's own tokens, also when sampling with a seed.
Task<void> ngram(Gen g, NgramParams a);

}  // namespace tandem
