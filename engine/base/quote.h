// Quoting of values in error messages and logs.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// In double quotes, with control characters and ill-formed UTF-8 escaped; truncated after `max`
// bytes.
std::string quote_value(absl::string_view value, size_t max = 200);

}  // namespace tandem
