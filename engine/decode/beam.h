// Beam search, as Transformers does it (generation/utils.py, early_stopping =
// False).
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

struct BeamParams {
  int width = 4;  // W. [1, ..)
  // A hypothesis of n tokens (its end token counts) scores sum(log p) / n^length_penalty.
  float length_penalty = 1;
  // kSmall: of a model that is told what the large one reads (LLM-to-SLM).
  Role writer = Role::kLarge;
};

// Emits the best hypothesis, once, when none that is still open can beat the W best finished ones
// (by the measure that Transformers uses: an open one's score at its present length). Greedy:
// temperature and truncation do nothing; log p is after processors.
Task<void> beam(Gen g, BeamParams a);

}  // namespace tandem
