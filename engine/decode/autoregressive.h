// Autoregressive decoding, the baseline that every method is measured against.
#pragma once

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Greedy: EXACT by definition. Sampled: the seed alone decides the tokens.
Task<void> autoregressive(Gen g);

// The same tokens, in rounds of `most` while the request is the only one of its model. Each pass of
// a round is submitted before the one before it ends, and begins with the token that only the
// device knows. So a device with a queue does not wait for the host. most: [1, ..)
Task<void> autoregressive_ahead(Gen g, int most);

}  // namespace tandem
