// Log-probabilities of given tokens under the large model: prompt logprobs and scoring.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct Scored {
  float logprob = kUnset;   // of token i given those before it; natural log, before processors
  std::vector<Ranked> top;  // the best tokens at this position
};

// Scores tokens [begin, seq.size()) of the sequence, one entry of `out` each. REQUIRES: begin >= 1;
// `out` outlives the task.
Task<void> score(Gen g, int begin, int top, std::vector<Scored>* out);

}  // namespace tandem
