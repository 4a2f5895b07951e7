// The methods that a request can name.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "engine/host/methods/entry.h"

namespace tandem {

using Methods = std::vector<const MethodEntry*>;

// In the order in which `auto` tries them, after the deployment's default.
const Methods& all_methods();

// Null: unknown, for example a method of a newer version.
const MethodEntry* find_method(absl::string_view name, const Methods& methods = all_methods());

// Autoregressive decoding with the request's `beam` message.
const MethodEntry& beam_entry();

}  // namespace tandem
