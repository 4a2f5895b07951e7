// The embedding of a sequence: the mean of states after the last norm.
#pragma once

#include <vector>

#include "engine/async/task.h"
#include "engine/base/embedding.h"
#include "engine/decode/gen.h"

namespace tandem {

// Not normalized. `see`: kAll for a bidirectional model, whose pass is never divided.
// REQUIRES: `out` outlives the task.
Task<void> embed(Gen g, Pooling pooling, See see, std::vector<double>* out);

}  // namespace tandem
