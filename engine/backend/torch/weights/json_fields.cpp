#include "engine/backend/torch/weights/json_fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/quote.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kLongest = 100;  // bytes of a value in a message

// Thrown by the parser's callback, caught in parse_json_object.
struct BadJson {
  std::string message;
};

}  // namespace

std::string value_text(const json& value) {
  if (value.is_string()) return quote_value(value.get_ref<const std::string&>(), kLongest);
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

absl::StatusOr<json> parse_json_object(const std::string& text, absl::string_view name) {
  std::vector<std::set<std::string>> keys;  // per open object
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        if (depth >= kMaxDepth) throw BadJson{absl::StrCat("nested deeper than ", kMaxDepth)};
        keys.emplace_back();
        break;
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) throw BadJson{absl::StrCat("nested deeper than ", kMaxDepth)};
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second) {
          throw BadJson{absl::StrCat(value_text(parsed), ": duplicate key")};
        }
        break;
      default:
        break;
    }
    return true;
  };
  try {
    json value = json::parse(text, check);
    if (value.is_object()) return value;
    return out_of_range(name, value_text(value), "a JSON object");
  } catch (const BadJson& bad) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", bad.message));
  } catch (const json::parse_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON at byte ", error.byte));
  } catch (const json::exception&) {  // a number beyond double
    return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON: a number out of range"));
  }
}

const json* JsonFields::find(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::present(const char* field) const { return object_.contains(field); }

template <class T>
T JsonFields::missing(const char* field, const std::optional<T>& fallback) {
  if (!fallback) fail(absl::InvalidArgumentError(absl::StrCat(context_, field, ": missing")));
  return fallback.value_or(T{});
}

int64_t JsonFields::integer(const char* field, std::optional<int64_t> fallback, int64_t min,
                            int64_t max) {
  const json* value = find(field);
  if (value == nullptr) return missing(field, fallback);
  const bool fits =
      value->is_number_integer() &&
      (!value->is_number_unsigned() ||
       value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (fits && value->get<int64_t>() >= min && value->get<int64_t>() <= max) {
    return value->get<int64_t>();
  }
  refuse(field, absl::StrCat("integers from ", min, " to ", max));
  return fallback.value_or(min);
}

double JsonFields::number(const char* field, std::optional<double> fallback, double min,
                          double max) {
  const json* value = find(field);
  if (value == nullptr) return missing(field, fallback);
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  refuse(field, absl::StrCat("numbers from ", min, " to ", max));
  return fallback.value_or(min);
}

bool JsonFields::boolean(const char* field, bool fallback) {
  const json* value = find(field);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  refuse(field, "true, false");
  return fallback;
}

std::string JsonFields::text(const char* field, const std::optional<std::string>& fallback) {
  const json* value = find(field);
  if (value == nullptr) return missing(field, fallback);
  if (value->is_string()) return value->get<std::string>();
  refuse(field, "a string");
  return fallback.value_or("");
}

std::vector<Token> JsonFields::token_ids(const char* field) {
  const json* value = find(field);
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  std::vector<Token> ids;
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() > std::numeric_limits<Token>::max()) {
      refuse(field, "token ids, which are integers from 0");
      return {};
    }
    ids.push_back(id.get<Token>());
  }
  return ids;
}

void JsonFields::refuse(const char* field, absl::string_view allowed) {
  const json* value = find(field);
  fail(out_of_range(absl::StrCat(context_, field), value == nullptr ? "null" : value_text(*value),
                    allowed));
}

}  // namespace tandem
