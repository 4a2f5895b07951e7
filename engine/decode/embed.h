// The embedding of a sequence: the mean of states after the last norm.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/base/embedding.h"
#include "engine/decode/gen.h"

namespace tandem {

// Not normalized. REQUIRES: `out` outlives the task.
Task<void> embed(Gen g, Pooling pooling, std::vector<double>* out);

}  // namespace tandem
