#include "server/openai/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::openai {
namespace {

constexpr size_t kShown = 40;

template <class Number>
std::optional<Number> parsed(absl::string_view text) {
  Number number = 0;
  if (!absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

// Some clients send all numbers as floating-point numbers: "40.0" is 40.
std::optional<int32_t> parsed_integer(absl::string_view text) {
  if (const auto number = parsed<int32_t>(text)) return number;
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || number != std::floor(number) ||
      std::abs(number) > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  return static_cast<int32_t>(number);
}

}  // namespace

std::string shown(absl::string_view number) {
  return number.size() <= kShown ? std::string(number)
                                 : absl::StrCat(number.substr(0, kShown), "...");
}

Fields::Fields(absl::string_view object, std::string path, Violations* wrong)
    : path_(std::move(path)), wrong_(*wrong) {
  add_members(object);
}

void Fields::absorb(absl::string_view object) { add_members(object); }

void Fields::add_members(absl::string_view object) {
  for (JsonMember& member : members_of(object)) entries_.push_back({std::move(member)});
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.member.name < b.member.name; });
  for (size_t i = 1; i < entries_.size(); ++i) {
    const std::string& name = entries_[i].member.name;
    if (entries_[i - 1].member.name == name) {
      if (wrong_.full()) break;
      wrong_.add(out_of_range(this->path(name), "given twice", "once"));
    }
  }
}

std::string Fields::path(absl::string_view name) const {
  // Known names are short; other names are quoted like values.
  const bool plain = name.size() <= kShown && std::all_of(name.begin(), name.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
                     });
  return absl::StrCat(path_, plain ? std::string(name) : quote_value(name, kShown));
}

std::optional<absl::string_view> Fields::any(absl::string_view name) {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const Entry& e, absl::string_view n) { return e.member.name < n; });
  if (at == entries_.end() || at->member.name != name) return std::nullopt;
  for (auto same = at; same != entries_.end() && same->member.name == name; ++same) {
    same->read = true;
  }
  if (kind_of(at->member.value) == JsonKind::kNull) return std::nullopt;
  return at->member.value;
}

std::optional<absl::string_view> Fields::of_kind(absl::string_view name, JsonKind kind) {
  const auto value = any(name);
  if (!value.has_value() || kind_of(*value) == kind) return value;
  wrong_.add(out_of_range(path(name), kind_name(kind_of(*value)), kind_name(kind)));
  return std::nullopt;
}

std::optional<bool> Fields::boolean(absl::string_view name) {
  const auto value = of_kind(name, JsonKind::kBool);
  if (!value.has_value()) return std::nullopt;
  return *value == "true";
}

std::optional<double> Fields::number(absl::string_view name) {
  const auto value = of_kind(name, JsonKind::kNumber);
  double number = 0;
  if (!value.has_value()) return std::nullopt;
  if (absl::SimpleAtod(*value, &number)) return number;
  wrong_.add(out_of_range(path(name), shown(*value), "a number"));
  return std::nullopt;
}

std::optional<int32_t> Fields::integer(absl::string_view name) {
  const auto value = of_kind(name, JsonKind::kNumber);
  if (!value.has_value()) return std::nullopt;
  const auto number = parsed_integer(*value);
  if (!number.has_value()) wrong_.add(out_of_range(path(name), shown(*value), "a 32-bit integer"));
  return number;
}

std::optional<uint64_t> Fields::unsigned_integer(absl::string_view name) {
  const auto value = any(name);
  if (!value.has_value()) return std::nullopt;
  const JsonKind kind = kind_of(*value);
  const bool is_string = kind == JsonKind::kString;
  const auto number = is_string                   ? parsed<uint64_t>(string_of(*value))
                      : kind == JsonKind::kNumber ? parsed<uint64_t>(*value)
                                                  : std::nullopt;
  if (!number.has_value()) {
    wrong_.add(out_of_range(path(name), kind == JsonKind::kNumber ? shown(*value) : kind_name(kind),
                            "an integer in [0, 2^64-1], also as a string"));
  }
  return number;
}

std::optional<std::string> Fields::string(absl::string_view name) {
  const auto value = of_kind(name, JsonKind::kString);
  if (!value.has_value()) return std::nullopt;
  return string_of(*value);
}

std::vector<absl::string_view> Fields::array(absl::string_view name) {
  const auto value = of_kind(name, JsonKind::kArray);
  if (!value.has_value()) return {};
  return elements_of(*value);
}

void Fields::only(absl::string_view name, absl::string_view neutral) {
  const auto value = any(name);
  if (!value.has_value() || *value == neutral) return;
  const JsonKind kind = kind_of(*value);
  const bool is_short = kind == JsonKind::kNumber || kind == JsonKind::kBool;
  wrong_.add(out_of_range(path(name), is_short ? shown(*value) : kind_name(kind),
                          absl::StrCat(neutral.empty() ? "" : absl::StrCat(neutral, " or "),
                                       "unset (not supported by this server)")));
}

void Fields::end() {
  for (const Entry& entry : entries_) {
    if (entry.read || kind_of(entry.member.value) == JsonKind::kNull) continue;
    if (wrong_.full()) return;
    wrong_.add(wrong_field(path(entry.member.name),
                           "unknown field; docs/http_fields.md lists all fields"));
  }
}

std::string Fields::rest() {
  std::string out;
  for (const Entry& entry : entries_) {
    if (entry.read || kind_of(entry.member.value) == JsonKind::kNull) continue;
    absl::StrAppend(&out, out.empty() ? "" : ",", json_string(entry.member.name), ":",
                    entry.member.value);
  }
  return out;
}

}  // namespace tandem::openai
