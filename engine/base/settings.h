// Named values: parameters of a method that a configuration or a request sets.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// A string may be the name of an enum value.
using SettingValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

struct Setting {
  std::string name;  // of a field; "tree.depth" in a nested message
  SettingValue value;
  friend bool operator==(const Setting&, const Setting&) = default;
};

// The values that were set. Names are unique.
using Settings = std::vector<Setting>;

// Null: not set.
const SettingValue* find_setting(const Settings& settings, absl::string_view name);

// Replaces the value of this name, if any.
void set_setting(Settings* settings, absl::string_view name, SettingValue value);

// As in messages: "0.5", "true", "MODEL", "a, b".
std::string setting_text(const SettingValue& value);

}  // namespace tandem
