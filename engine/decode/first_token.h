// The first round of methods with several models: the large model's first token.
#pragma once

#include <span>
#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Whether the prefix caches have rows of the prompt for each of these caches, and at most 8 rows
// remain. Then a round with drafts can come first: its passes also read these rows. The rounds then
// depend on the prefix caches, so this is for methods whose drafts depend on measured times anyway.
bool drafts_can_come_first(Gen g, std::span<const Stage> stages);

// Prefills the large model and concurrently `others`, and emits the first token, which is that of
// autoregressive decoding. Returns whether it ended the request. The prefill of `others` may still
// be running then; later passes on them run after it.
Task<bool> first_token(Gen g, std::vector<Stage> others);

}  // namespace tandem
