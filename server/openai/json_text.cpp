#include "server/openai/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/base/enum_names.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

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

// Follows a parser of JSON and stops it at the first limit that is exceeded.
class JsonLimits final : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::Status status;
  bool is_object = false;  // the outermost value

  bool null() override { return value(); }
  bool boolean(bool /*value*/) override { return value(); }
  bool number_integer(number_integer_t /*value*/) override { return value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return value(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return value(); }
  bool string(string_t& /*value*/) override { return value(); }
  bool binary(binary_t& /*value*/) override { return value(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    const bool top = levels_.size() == 1;
    if (top) member_ = name;
    const size_t most = top ? kMaxTopMembers : kMaxMembers;
    return ++level.parts <= most || exceeded("an object of more members", most, top);
  }
  bool start_object(size_t /*size*/) override {
    is_object = is_object || levels_.empty();
    return nested(/*array=*/false);
  }
  bool start_array(size_t /*size*/) override { return nested(/*array=*/true); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;
  }

 private:
  struct Level {
    bool array;
    size_t parts = 0;   // members, or elements
    size_t nested = 0;  // of these, arrays and objects
  };

  bool value() {
    if (levels_.empty() || !levels_.back().array) return true;
    return ++levels_.back().parts <= kMaxElements ||
           exceeded("an array of more elements", kMaxElements, false);
  }
  bool nested(bool array) {
    if (!value()) return false;
    if (!levels_.empty() && levels_.back().array && ++levels_.back().nested > kMaxNested) {
      return exceeded("an array of more objects and arrays", kMaxNested, false);
    }
    if (levels_.size() == kMaxJsonDepth) return exceeded("more levels", kMaxJsonDepth, false);
    levels_.push_back({array});
    return true;
  }
  bool end() {
    levels_.pop_back();
    return true;
  }
  bool exceeded(absl::string_view what, size_t most, bool of_body) {
    const bool plain =
        member_.size() <= 40 && std::all_of(member_.begin(), member_.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        });
    const std::string where = of_body || member_.empty() ? "body"
                              : plain                    ? member_
                                                         : quote_value(member_);
    status = out_of_range(where, what, absl::StrCat("at most ", most));
    return false;
  }

  std::vector<Level> levels_;
  std::string member_;  // of the outermost object
};

absl::Status no_object(absl::string_view text) {
  return out_of_range("body", absl::StrCat(text.size(), " bytes that are not a JSON object"),
                      "one JSON object");
}

}  // namespace

const char* kind_name(JsonKind kind) { return kKindNames[kind].data(); }

bool is_json(absl::string_view text) {
  return nlohmann::json::accept(text.data(), text.data() + text.size());
}

absl::Status check_json_object(absl::string_view text) {
  JsonLimits limits;
  const bool complete = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &limits);
  if (!limits.status.ok()) return limits.status;
  return complete && limits.is_object ? absl::OkStatus() : no_object(text);
}

absl::Status check_any_json_object(absl::string_view text) {
  return is_json(text) && kind_of(text) == JsonKind::kObject ? absl::OkStatus() : no_object(text);
}

int64_t parse_memory(absl::string_view text) {
  // Each element of a list follows one of these characters; those within strings only add to the
  // bound.
  const auto elements =
      std::count_if(text.begin(), text.end(), [](char c) { return c == ',' || c == '['; });
  constexpr int64_t kElement = sizeof(absl::string_view);
  constexpr int64_t kObjects = 64 * kMaxMembers;  // an object's members
  return kObjects + 2 * static_cast<int64_t>(text.size()) +
         kElement * static_cast<int64_t>(elements);
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
