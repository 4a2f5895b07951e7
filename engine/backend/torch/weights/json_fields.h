// Reading JSON files that nobody has checked.
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

inline constexpr size_t kMaxConfigBytes = 4 << 20;  // of a model's config.json and the like

// A JSON value, fit for a message.
std::string value_text(const nlohmann::json& value);

// An object without duplicate keys, nested at most 32 deep. INVALID_ARGUMENT otherwise, with `name`
// and the place.
absl::StatusOr<nlohmann::json> parse_json_object(const std::string& text, absl::string_view name);

// The fields of one object, with the error of the first one that is wrong: read all, then ask
// status(). After an error, and for an absent or null field, readers return their fallback.
class JsonFields {
 public:
  // `context` goes before field names in messages: "config.json: ". The object must outlive this.
  JsonFields(const nlohmann::json& object, std::string context)
      : object_(object), context_(std::move(context)) {}

  const absl::Status& status() const { return status_; }
  // The field, or null where it is absent or JSON's null.
  const nlohmann::json* find(const char* field) const;
  bool present(const char* field) const;  // even if null

  int64_t integer(const char* field, std::optional<int64_t> fallback, int64_t min, int64_t max);
  double number(const char* field, std::optional<double> fallback, double min, double max);
  bool boolean(const char* field, bool fallback);
  std::string text(const char* field, const std::optional<std::string>& fallback);
  std::vector<Token> token_ids(const char* field);  // one id or a list of them

  // Records the error "context field: value; allowed: ..." unless there is one already.
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
