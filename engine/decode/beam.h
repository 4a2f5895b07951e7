// Beam search as in Transformers (generation/utils.py, early_stopping = False).
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct BeamParams {
  int width = 4;  // W. [1, ..)
  // A hypothesis of n tokens (its end token counts) scores sum(log p) / n^length_penalty.
  float length_penalty = 1;
  // kSmall: a model that is conditioned on the large one (LLM-to-SLM).
  Role writer = Role::kLarge;
};

// Emits the best hypothesis, once, when no open one can beat the W best finished ones
// (Transformers' rule: an open one counts with its score at its present length). If all
// continuations are banned, the best open hypothesis is emitted. Greedy: temperature and truncation
// have no effect; log p is after processors.
Task<void> beam(Gen g, BeamParams a);

}  // namespace tandem
