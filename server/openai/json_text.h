// Inspects JSON text without parsing it into values. A request may have 4 MiB of arbitrary JSON, so
// no function recurses, makes more than one pass, or allocates more than a list of the parts.
// Values keep the client's formatting for chat templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::openai {

enum class JsonKind { kNull, kBool, kNumber, kString, kArray, kObject };
const char* kind_name(JsonKind kind);  // "a string", "an array", ...

// Whether the text is well-formed (RFC 8259) and UTF-8.
bool is_json(absl::string_view text);

// Limits of the text of a request, checked in one pass before anything of it is kept.
inline constexpr size_t kMaxJsonDepth = 128;
inline constexpr size_t kMaxTopMembers = 256;            // of the outermost object
inline constexpr size_t kMaxMembers = 4096;              // of any other object
inline constexpr size_t kMaxElements = size_t{1} << 20;  // of an array
inline constexpr size_t kMaxNested = 16384;              // objects and arrays in one array

// INVALID_ARGUMENT unless the text is one JSON object within the limits. The error names the member
// that exceeds one.
absl::Status check_json_object(absl::string_view text);
// The same without limits, for bodies whose readers have their own.
absl::Status check_any_json_object(absl::string_view text);

// The most memory that reading a checked text with the functions below takes, in addition to the
// text: its strings, copied once, a view of each element of its arrays, and one object's members.
int64_t parse_memory(absl::string_view text);

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
