// Tells whether the frequent tokens of a vocabulary have the lowest ids.
#pragma once

#include "engine/text/tokenizer.h"

namespace tandem {

// True if ids follow the order of merges, as in BPE, so that frequent tokens have low ids. Samples
// 1,000 tokens: 95 % must be the concatenation of two tokens with lower ids.
bool merges_in_order(const Tokenizer& tokenizer);

}  // namespace tandem
