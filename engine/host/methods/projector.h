// Checks of projectors, for methods that condition the small model on the large one
// (ModelInRole::conditioned_by).
#pragma once

#include <optional>
#include <string>

#include "engine/host/methods/entry.h"

namespace tandem {

// Why the small model's projector `name` does not fit the deployment: its models, the width and the
// layer of its source, or its tokens. The field is `adapter`. REQUIRES: the small model, if there
// is one, has the adapter.
std::optional<Refusal> projector_misfit(const std::string& name, const Deployment& d);

}  // namespace tandem
