// Values by name: what somebody set of a method's parameters, whoever knows what they mean.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// A string is also what a value of an enum is called.
using SettingValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

struct Setting {
  std::string name;  // of a field; "tree.depth" for one of a message within
  SettingValue value;
  friend bool operator==(const Setting&, const Setting&) = default;
};

// What is not in here was not set. Each name once.
using Settings = std::vector<Setting>;

// Null where there is none of this name.
const SettingValue* find_setting(const Settings& settings, absl::string_view name);

// In place of the one of this name, if there is one.
void set_setting(Settings* settings, absl::string_view name, SettingValue value);

// As messages show it: "0.5", "true", "MODEL", "a, b".
std::string setting_text(const SettingValue& value);

}  // namespace tandem
