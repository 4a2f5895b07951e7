#include "server/edge/status_text.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/enum_names.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"

namespace tandem {
namespace {

constexpr auto kCodeNames = enum_names<absl::StatusCode>({
    {absl::StatusCode::kOk, "OK"},
    {absl::StatusCode::kCancelled, "CANCELLED"},
    {absl::StatusCode::kUnknown, "UNKNOWN"},
    {absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT"},
    {absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED"},
    {absl::StatusCode::kNotFound, "NOT_FOUND"},
    {absl::StatusCode::kAlreadyExists, "ALREADY_EXISTS"},
    {absl::StatusCode::kPermissionDenied, "PERMISSION_DENIED"},
    {absl::StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED"},
    {absl::StatusCode::kFailedPrecondition, "FAILED_PRECONDITION"},
    {absl::StatusCode::kAborted, "ABORTED"},
    {absl::StatusCode::kOutOfRange, "OUT_OF_RANGE"},
    {absl::StatusCode::kUnimplemented, "UNIMPLEMENTED"},
    {absl::StatusCode::kInternal, "INTERNAL"},
    {absl::StatusCode::kUnavailable, "UNAVAILABLE"},
    {absl::StatusCode::kDataLoss, "DATA_LOSS"},
    {absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED"},
});

}  // namespace

const char* code_name(absl::StatusCode code) {
  const bool known = static_cast<size_t>(code) < kCodeNames.size();
  return kCodeNames[known ? code : absl::StatusCode::kUnknown].data();
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

std::string reason_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  if (payload.has_value()) return std::string(*payload);
  return violations_of(status).empty() ? code_name(status.code()) : "INVALID_FIELD";
}

absl::Status client_status(const absl::Status& status, const std::string& request_id) {
  if (!is_fault(status)) return status;
  return absl::InternalError(absl::StrCat("internal error; request id ", request_id));
}

}  // namespace tandem
