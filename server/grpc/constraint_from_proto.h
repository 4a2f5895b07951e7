// The constraint of a GenerateRequest.
#pragma once

#include <optional>

#include "engine/base/violations.h"
#include "engine/text/grammar.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// Nullopt if it has none. The engine compiles it; here only its form is checked.
std::optional<GrammarSpec> constraint_from(const v1::GenerateRequest& in, Violations* wrong);

}  // namespace tandem
