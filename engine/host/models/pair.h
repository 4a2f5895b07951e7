// Can a large and a small model be used for each other's tokens?
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/host/models/loaded_model.h"

namespace tandem {

// Both models must mean the same token by every id. Output matrices may differ by some rows of
// padding. The error names the first token that differs. `field` names the small model.
absl::Status check_same_tokens(const std::string& field, const LoadedModel& large,
                               const LoadedModel& small);

// Both models must run the prompt with an encoder, or both without.
absl::Status check_same_kind(const std::string& field, const LoadedModel& large,
                             const LoadedModel& small);

}  // namespace tandem
