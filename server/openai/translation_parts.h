// Parts of the translations (translation.h): JSON text for requests, events for answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/violations.h"
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
