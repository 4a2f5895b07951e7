// Looks into JSON text without making values of it. What a client sends may be 4 MiB of anything,
// so nothing here recurses, takes more than one pass over its text, or more memory than a list of
// its parts; and what goes on to a chat template goes on as it was written.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::openai {

enum class JsonKind { kNull, kBool, kNumber, kString, kArray, kObject };
const char* kind_name(JsonKind kind);  // "a string", "an array", ...

// Well-formed (RFC 8259) and UTF-8.
bool is_json(absl::string_view text);

// What follows REQUIRES is_json() of the text, or of one that it is a part of.
JsonKind kind_of(absl::string_view value);

struct JsonMember {
  std::string name;
  absl::string_view value;
};
std::vector<JsonMember> members_of(absl::string_view object);  // in their order, duplicates too
std::vector<absl::string_view> elements_of(absl::string_view array);
std::string string_of(absl::string_view string);  // what it stands for

// `text`, which is UTF-8, as a JSON string. What is not UTF-8 becomes U+FFFD.
void append_json_string(absl::string_view text, std::string* out);
std::string json_string(absl::string_view text);

}  // namespace tandem::openai
