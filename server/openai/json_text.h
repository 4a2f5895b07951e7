// Inspects JSON text without parsing it into values. A request may have 4 MiB of arbitrary JSON, so
// no function recurses, makes more than one pass, or allocates more than a list of the parts.
// Values keep the client's formatting for chat templates.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::openai {

enum class JsonKind { kNull, kBool, kNumber, kString, kArray, kObject };
const char* kind_name(JsonKind kind);  // "a string", "an array", ...

// Whether the text is well-formed (RFC 8259) and UTF-8.
bool is_json(absl::string_view text);

// The functions below REQUIRE is_json() of the text, or of a text that contains it.
JsonKind kind_of(absl::string_view value);

struct JsonMember {
  std::string name;
  absl::string_view value;
};
std::vector<JsonMember> members_of(absl::string_view object);  // in order, with duplicates
std::vector<absl::string_view> elements_of(absl::string_view array);
std::string string_of(absl::string_view string);  // unescaped

// `text` as a JSON string. Ill-formed UTF-8 becomes U+FFFD.
void append_json_string(absl::string_view text, std::string* out);
std::string json_string(absl::string_view text);

}  // namespace tandem::openai
