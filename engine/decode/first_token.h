// The first round of methods with several models: the large model's first token.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Prefills the large model and concurrently `others`, and emits the first token, which is that of
// autoregressive decoding. Returns whether it ended the request. The prefill of `others` may still
// be running then; later passes on them run after it.
Task<bool> first_token(Gen g, std::vector<Stage> others);

}  // namespace tandem
