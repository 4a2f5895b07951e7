// Reading of untrusted JSON files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/base/status.h"

namespace tandem {

inline constexpr size_t kMaxConfigBytes = 4 << 20;  // for config.json and similar files

// A JSON value for messages.
std::string value_text(const nlohmann::json& value);

// Parses an object without duplicate keys, nested at most 32 deep. INVALID_ARGUMENT otherwise, with
// `name` and the position.
absl::StatusOr<nlohmann::json> parse_json_object(const std::string& text, absl::string_view name);

// Typed access to the fields of an object that records the first error: read all fields, then check
// status(). After an error, and for absent or null fields, readers return the fallback.
class JsonFields {
 public:
  // context: prefix of field names in messages, such as "config.json: ". REQUIRES: the object
  // outlives this.
  JsonFields(const nlohmann::json& object, std::string context)
      : object_(object), context_(std::move(context)) {}

  const absl::Status& status() const { return status_; }
  // The field, or null if it is absent or JSON null.
  const nlohmann::json* find(const char* field) const;
  bool present(const char* field) const;  // also true for null

  int64_t integer(const char* field, std::optional<int64_t> fallback, int64_t min, int64_t max);
  double number(const char* field, std::optional<double> fallback, double min, double max);
  bool boolean(const char* field, bool fallback);
  std::string text(const char* field, const std::optional<std::string>& fallback);
  std::vector<Token> token_ids(const char* field);  // one id or a list

  // Records "context field: value; allowed: ..." unless there is an earlier error.
  void refuse(const char* field, absl::string_view allowed);
  void fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  template <class T>
  T missing(const char* field, const std::optional<T>& fallback);

  const nlohmann::json& object_;
  const std::string context_;
  absl::Status status_;
};

}  // namespace tandem
