#include "server/edge/status_text.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"

namespace tandem {

const char* code_name(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

bool is_fault(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInternal ||
         status.code() == absl::StatusCode::kUnknown ||
         status.code() == absl::StatusCode::kDataLoss;
}

std::string bounded_text(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

int64_t retry_after_ms(const absl::Status& status) {
  int64_t ms = 1000;
  if (const auto payload = status.GetPayload(kRetryPayload); payload.has_value()) {
    if (!absl::SimpleAtoi(std::string(*payload), &ms) || ms < 0) ms = 1000;
  }
  return ms;
}

// Where nobody gave a reason, the fields are wrong or the code says it all.
std::string reason_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  if (payload.has_value()) return std::string(*payload);
  return violations_of(status).empty() ? code_name(status.code()) : "INVALID_FIELD";
}

absl::Status told_status(const absl::Status& status, const std::string& request_id) {
  if (!is_fault(status)) return status;
  return absl::InternalError(absl::StrCat("internal error; request id ", request_id));
}

}  // namespace tandem
