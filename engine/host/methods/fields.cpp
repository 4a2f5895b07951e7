#include "engine/host/methods/fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

// Integral bounds in full: 4096, not 4.1e+03.
std::string bound(double v) {
  constexpr double kWhole = 1 << 30;
  return v >= -kWhole && v <= kWhole && v == static_cast<double>(static_cast<int64_t>(v))
             ? absl::StrCat(static_cast<int64_t>(v))
             : absl::StrCat(v);
}

}  // namespace

double as_written(float v) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), v).ptr;
  double out = v;
  std::from_chars(std::begin(text), end, out);
  return out;
}

float to_float(double v) {
  constexpr double kMax = std::numeric_limits<float>::max();
  if (v > kMax) return std::numeric_limits<float>::infinity();
  if (v < -kMax) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(v);
}

std::string Field::allowed() const {
  switch (kind) {
    case Kind::kSwitch:
      return "true, false";
    case Kind::kInteger:
    case Kind::kNumber:
      return absl::StrCat("[", bound(min), ", ", bound(max), "]");
    case Kind::kChoice:
      return absl::StrJoin(choices, ", ");
    case Kind::kText:
      return "a text";
    case Kind::kTexts:
      return "a list of texts";
  }
  return "";
}

std::optional<Refusal> Field::check(const SettingValue& value) const {
  const auto in_range = [this](double v) { return v >= min && v <= max; };  // false for NaN
  const auto* const whole = std::get_if<int64_t>(&value);
  const auto* const real = std::get_if<double>(&value);
  const auto* const text = std::get_if<std::string>(&value);
  bool fits = false;
  switch (kind) {
    case Kind::kSwitch:
      fits = std::holds_alternative<bool>(value);
      break;
    case Kind::kInteger:
      fits = whole && in_range(static_cast<double>(*whole));
      break;
    case Kind::kNumber:
      fits = (whole && in_range(static_cast<double>(*whole))) || (real && in_range(*real));
      break;
    case Kind::kChoice:
      fits = text && std::find(choices.begin(), choices.end(), *text) != choices.end();
      break;
    case Kind::kText:
      fits = text != nullptr;
      break;
    case Kind::kTexts:
      fits = std::holds_alternative<std::vector<std::string>>(value);
      break;
  }
  if (fits) return std::nullopt;
  return Refusal{name, setting_text(value), allowed()};
}

}  // namespace tandem
