// Log-probabilities of given tokens under the large model: prompt logprobs and scoring.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct Scored {
  float logprob = kUnset;   // of token i given the tokens before it; natural log, before processors
  std::vector<Ranked> top;  // the best tokens in its place
};

// Scores tokens [begin, seq.size()) of the sequence, 1 <= begin. `out` outlives the task and gets
// one entry for each.
Task<void> score(Gen g, int begin, int top, std::vector<Scored>* out);

}  // namespace tandem
