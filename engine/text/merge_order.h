// Do a vocabulary's frequent tokens come first?
#pragma once

#include "engine/text/tokenizer.h"

namespace tandem {

// Do ids follow the order in which tokens were merged, so that the frequent ones come first? Looks
// at a thousand of them: nearly each must be two earlier ones in a row.
bool merges_in_order(const Tokenizer& tokenizer);

}  // namespace tandem
