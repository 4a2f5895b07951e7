// Parts of the translations (translation.h): JSON text for requests, events for answers.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/violations.h"
#include "server/openai/field_table.h"
#include "server/openai/fields.h"
#include "server/openai/json_text.h"

namespace tandem::openai {

using OrderedJson = nlohmann::ordered_json;

// Writes a JSON object or array from the text of its parts.
class JsonWriter {
 public:
  explicit JsonWriter(char open) : text_(1, open), close_(open == '{' ? '}' : ']') {}

  void add(absl::string_view name, absl::string_view value);  // of an object
  void add(absl::string_view value);                          // of an array
  bool empty() const { return text_.size() == 1; }
  std::string text() const { return text_ + close_; }

 private:
  std::string text_;
  char close_;
};

// `value` is of this kind; else adds an error.
bool expect_kind(absl::string_view value, JsonKind kind, const std::string& path,
                 Violations* wrong);

// The JSON of a chat completion for `body`: the members of the field table (field_table.h), those
// that `add_others` writes, and of a streamed answer `stream_options`.
absl::StatusOr<std::string> chat_request(
    Api api, const std::string& body, absl::string_view stream_options,
    absl::FunctionRef<void(Fields* in, JsonWriter* out, Violations* wrong)> add_others);

// {"type": "text", "text": TEXT}
std::string text_block(const std::string& text);
// The content of a message: a string, or parts with text. `types`: their types; `allowed`: these in
// an error.
std::string text_content(absl::string_view content, const std::string& path,
                         std::initializer_list<absl::string_view> types, absl::string_view allowed,
                         Violations* wrong);
// {"type": "function", "function": FUNCTION}
std::string tool_of(const JsonWriter& function);

// Calls `event` for the JSON of each server-sent event in `events`, and `done` at [DONE].
void for_each_event(absl::string_view events,
                    absl::FunctionRef<void(const nlohmann::json& data)> event,
                    absl::FunctionRef<void()> done);

// "event: TYPE\ndata: JSON\n\n", where TYPE is the member "type".
std::string typed_event(const OrderedJson& data);

// A member, or null.
const nlohmann::json& member_of(const nlohmann::json& object, const char* name);
std::string text_of(const nlohmann::json& object, const char* name);  // empty if it is no string
int64_t count_of(const nlohmann::json& object, const char* name);     // 0 if it is no number

// "chatcmpl-ID" -> PREFIX + "ID".
std::string id_of(const nlohmann::json& chat, absl::string_view prefix);

// `status` with new names for fields: `rename` gets a path, and returns it or another.
absl::Status with_names(const absl::Status& status,
                        absl::FunctionRef<std::string(const std::string& field)> rename);

}  // namespace tandem::openai
