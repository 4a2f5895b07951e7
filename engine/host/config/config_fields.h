// Reads one message of a deployment file. Errors name the line of the value.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status.h"
#include "engine/host/config/config_file.h"

namespace tandem {

// Checks and copies the fields of one message. `prefix` is its path in the file.
class ConfigFields {
 public:
  ConfigFields(const ConfigFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)) {}

  absl::Status error(absl::string_view field, absl::string_view value,
                     absl::string_view allowed) const {
    return file_.error(absl::StrCat(prefix_, field), value, allowed);
  }

  template <class From, class To>
  absl::Status number(absl::string_view field, bool set, From value, From min, From max,
                      To* to) const {
    if (!set) return absl::OkStatus();
    if (!(value >= min && value <= max)) {  // written so that NaN fails too
      return error(field, absl::StrCat(value), absl::StrCat("[", min, ", ", max, "]"));
    }
    *to = static_cast<To>(value);
    return absl::OkStatus();
  }

 private:
  const ConfigFile& file_;
  std::string prefix_;
};

}  // namespace tandem

// ConfigFields::number for an `optional` field.
#define TANDEM_NUMBER(fields, message, field, min, max, to) \
  TANDEM_RETURN_IF_ERROR(                                   \
      (fields).number(#field, (message).has_##field(), (message).field(), min, max, to))
