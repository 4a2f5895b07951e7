// A value as the log shows it: on one line, with nothing in it that forges or hides anything.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// In double quotes, as a JSON string: quotes, backslashes, control characters, and characters that
// break lines or turn the direction of writing (U+2028, U+202E, ...) escaped, ill-formed UTF-8 as
// U+FFFD. With "..." at its end where `cut`.
std::string log_quoted(absl::string_view value, bool cut);

// The value itself where it is one plain word, else as above.
std::string log_text(absl::string_view value, bool cut);

// Whether JSON knows this number: no inf, no nan.
bool is_json_number(absl::string_view value);

}  // namespace tandem
