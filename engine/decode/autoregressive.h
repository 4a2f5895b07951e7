// Autoregressive decoding, the baseline that every method is measured against.
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Greedy: EXACT by definition. Sampled: the seed alone decides the tokens.
Task<void> autoregressive(Gen g);

}  // namespace tandem
