// Escapes values for the log: one line, with nothing that forges or hides text.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// A JSON string. Escapes quotes, backslashes, control characters, line separators and marks of text
// direction (U+2028, U+202E, ...). Ill-formed UTF-8 becomes U+FFFD. Ends with "..." if `cut`.
std::string log_quoted(absl::string_view value, bool cut);

// The value itself if it is one plain word, else log_quoted().
std::string log_text(absl::string_view value, bool cut);

// Whether the text is a JSON number (not inf or nan).
bool is_json_number(absl::string_view value);

}  // namespace tandem
