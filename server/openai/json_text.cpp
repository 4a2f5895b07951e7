#include "server/openai/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/enum_names.h"

namespace tandem::openai {
namespace {

constexpr auto kKindNames = enum_names<JsonKind>({
    {JsonKind::kNull, "null"},
    {JsonKind::kBool, "a boolean"},
    {JsonKind::kNumber, "a number"},
    {JsonKind::kString, "a string"},
    {JsonKind::kArray, "an array"},
    {JsonKind::kObject, "an object"},
});

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// A position in well-formed JSON.
class Cursor {
 public:
  explicit Cursor(absl::string_view text) : text_(text) { skip_spaces(); }

  bool at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  // Skips a character and the space after it.
  void step() {
    ++at_;
    skip_spaces();
  }
  // Returns the value at the position and moves past it.
  absl::string_view value() {
    const size_t from = at_;
    size_t depth = 0;
    do {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at_;
      if (depth == 0 && c != '}' && c != ']') skip_word();
    } while (depth > 0 && at_ < text_.size());
    const absl::string_view found = text_.substr(from, at_ - from);
    skip_spaces();
    return found;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }
  void skip_word() {  // the rest of a number, true, false or null
    while (at_ < text_.size() && !is_space(text_[at_]) &&
           absl::string_view(",]}").find(text_[at_]) == absl::string_view::npos) {
      ++at_;
    }
  }

  const absl::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const char* kind_name(JsonKind kind) { return kKindNames[kind].data(); }

bool is_json(absl::string_view text) {
  return nlohmann::json::accept(text.data(), text.data() + text.size());
}

JsonKind kind_of(absl::string_view value) {
  size_t at = 0;
  while (is_space(value[at])) ++at;
  switch (value[at]) {
    case 'n':
      return JsonKind::kNull;
    case 't':
    case 'f':
      return JsonKind::kBool;
    case '"':
      return JsonKind::kString;
    case '[':
      return JsonKind::kArray;
    case '{':
      return JsonKind::kObject;
    default:
      return JsonKind::kNumber;
  }
}

std::vector<JsonMember> members_of(absl::string_view object) {
  std::vector<JsonMember> out;
  Cursor cursor(object);
  cursor.step();  // {
  while (cursor.at('"')) {
    std::string name = string_of(cursor.value());
    cursor.step();  // :
    out.push_back({std::move(name), cursor.value()});
    if (cursor.at(',')) cursor.step();
  }
  return out;
}

std::vector<absl::string_view> elements_of(absl::string_view array) {
  std::vector<absl::string_view> out;
  Cursor cursor(array);
  cursor.step();  // [
  while (!cursor.at(']')) {
    out.push_back(cursor.value());
    if (cursor.at(',')) cursor.step();
  }
  return out;
}

std::string string_of(absl::string_view string) {
  return nlohmann::json::parse(string.data(), string.data() + string.size()).get<std::string>();
}

void append_json_string(absl::string_view text, std::string* out) {
  // Fast path: most text is ASCII without characters to escape.
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    out->push_back('"');
    out->append(text.data(), text.size());
    out->push_back('"');
    return;
  }
  out->append(nlohmann::json(std::string(text))
                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string json_string(absl::string_view text) {
  std::string out;
  append_json_string(text, &out);
  return out;
}

}  // namespace tandem::openai
