#include "server/grpc_status.h"

#include <google/protobuf/util/time_util.h>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/violations.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

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

namespace {

// Messages travel percent-encoded, in up to three bytes for one, and once more in the details, in
// base64; the fields' descriptions say it all again. Clients take 8 KiB of it, all together.
constexpr size_t kMaxMessage = 1100;
constexpr size_t kMaxPart = 400;

std::string bounded(absl::string_view text, size_t most) {
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

// A serialized google.rpc.Status: what went wrong, in a form for programs.
std::string details(const absl::Status& status, const std::string& message,
                    const std::string& request_id) {
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(message);

  google::rpc::ErrorInfo info;
  info.set_reason(reason_of(status));
  info.set_domain("tandem");
  (*info.mutable_metadata())["request_id"] = request_id;
  out.add_details()->PackFrom(info);

  google::rpc::BadRequest bad;
  size_t left = kMaxMessage;
  for (const Violation& v : violations_of(status)) {
    const std::string field = bounded(v.field, kMaxPart);
    const std::string description = bounded(v.description, kMaxPart);
    if (field.size() + description.size() > left) break;
    left -= field.size() + description.size();
    auto* const violation = bad.add_field_violations();
    violation->set_field(field);
    violation->set_description(description);
  }
  if (!bad.field_violations().empty()) out.add_details()->PackFrom(bad);

  if (status.code() == absl::StatusCode::kResourceExhausted) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() =
        google::protobuf::util::TimeUtil::MillisecondsToDuration(retry_after_ms(status));
    out.add_details()->PackFrom(retry);
  }
  return out.SerializeAsString();
}

}  // namespace

grpc::Status to_grpc(const absl::Status& status, const std::string& request_id) {
  if (status.ok()) return grpc::Status::OK;
  if (is_fault(status)) {
    const absl::Status told =
        absl::InternalError(absl::StrCat("internal error; request id ", request_id));
    const std::string message(told.message());
    return grpc::Status(grpc::StatusCode::INTERNAL, message, details(told, message, request_id));
  }
  const std::string message =
      bounded(absl::string_view(status.message().data(), status.message().size()), kMaxMessage);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details(status, message, request_id));
}

}  // namespace tandem
