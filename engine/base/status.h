// Status helpers. (absl functions take absl::string_view: std::string converts to it, but with
// Debian's abseil std::string_view does not.)
//
// Error messages name the field or file, its value and the allowed range.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Payload of a RESOURCE_EXHAUSTED status: the retry delay in decimal milliseconds.
inline constexpr char kRetryPayload[] = "tandem/retry-after-ms";

// Payload: the machine-readable reason, such as "QUEUE_FULL". docs/api.md lists them.
inline constexpr char kReasonPayload[] = "tandem/reason";

inline absl::Status with_reason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kReasonPayload, absl::Cord(reason));
  return status;
}

// INVALID_ARGUMENT "field: description", which violations_of (violations.h) parses.
absl::Status wrong_field(absl::string_view field, absl::string_view description);

// "field: value; allowed: range". `value` is anything absl::StrCat takes.
template <class Value>
absl::Status out_of_range(absl::string_view field, const Value& value, absl::string_view allowed) {
  return wrong_field(field, absl::StrCat(value, "; allowed: ", allowed));
}

// The same status with the message "context: message".
inline absl::Status annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { out.SetPayload(type, payload); });
  return out;
}

}  // namespace tandem

#define TANDEM_CONCAT_INNER_(a, b) a##b
#define TANDEM_CONCAT_(a, b) TANDEM_CONCAT_INNER_(a, b)

#define TANDEM_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define TANDEM_ASSIGN_OR_RETURN(lhs, expr) \
  TANDEM_ASSIGN_OR_RETURN_IMPL_(TANDEM_CONCAT_(status_or_, __LINE__), lhs, expr)
#define TANDEM_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = std::move(*tmp)
