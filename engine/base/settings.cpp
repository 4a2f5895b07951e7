#include "engine/base/settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

struct AsText {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return absl::StrCat(v); }
  std::string operator()(double v) const { return absl::StrCat(v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const std::vector<std::string>& v) const { return absl::StrJoin(v, ", "); }
};

}  // namespace

const SettingValue* find_setting(const Settings& settings, absl::string_view name) {
  const auto it = std::find_if(settings.begin(), settings.end(),
                               [&](const Setting& s) { return s.name == name; });
  return it == settings.end() ? nullptr : &it->value;
}

void set_setting(Settings* settings, absl::string_view name, SettingValue value) {
  for (Setting& s : *settings) {
    if (s.name == name) {
      s.value = std::move(value);
      return;
    }
  }
  settings->push_back({std::string(name), std::move(value)});
}

std::string setting_text(const SettingValue& value) { return std::visit(AsText(), value); }

}  // namespace tandem
