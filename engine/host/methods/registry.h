// Every method that a request can ask for by name.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "engine/host/methods/entry.h"

namespace tandem {

// In the order in which `auto` looks for one, behind the deployment's default.
const std::vector<const MethodEntry*>& all_methods();

// Null where there is none: a method of another version.
const MethodEntry* find_method(absl::string_view name);

// Autoregressive decoding's other way: of the message `beam` of a request.
const MethodEntry& beam_entry();

}  // namespace tandem
