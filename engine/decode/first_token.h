// How methods with several models begin: the large one's first token.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/decode/gen.h"

namespace tandem {

// Prefills the large model and, beside it, the stages in `beside`; emits the first token, which is
// AR's own. True: it ended the request. `beside` may still be filling then: whoever submits a pass
// there comes after it.
Task<bool> first_token(Gen g, std::vector<Stage> beside);

}  // namespace tandem
