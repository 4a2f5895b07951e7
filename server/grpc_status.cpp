#include "server/grpc_status.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// A message travels percent-encoded in a header, and clients bound their headers.
constexpr size_t kMaxMessage = 2000;

std::string bounded(absl::string_view message) {
  if (message.size() <= kMaxMessage) return std::string(message);
  size_t end = kMaxMessage;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(message.substr(0, end), "...");
}

Duration retry_after(const absl::Status& status) {
  int64_t ms = 1000;
  if (const auto payload = status.GetPayload(kRetryPayload); payload.has_value()) {
    if (!absl::SimpleAtoi(std::string(*payload), &ms) || ms < 0) ms = 1000;
  }
  return std::chrono::milliseconds(ms);
}

}  // namespace

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

// google.rpc.Status { int32 code = 1; string message = 2; repeated Any details = 3; } and
// google.rpc.RetryInfo { Duration retry_delay = 1; }, written by hand: two messages are no reason
// to register a second copy of google.rpc in the process.
std::string retry_details(int code, const std::string& message, Duration delay) {
  using Wire = google::protobuf::internal::WireFormatLite;
  google::protobuf::Duration wait;
  wait.set_seconds(std::chrono::duration_cast<std::chrono::seconds>(delay).count());
  wait.set_nanos(static_cast<int32_t>((delay % std::chrono::seconds(1)).count()));

  const auto write = [](const auto& fields) {
    std::string bytes;
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    fields(&out);
    out.Trim();
    return bytes;
  };
  google::protobuf::Any any;
  any.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  any.set_value(write([&](auto* out) { Wire::WriteBytes(1, wait.SerializeAsString(), out); }));
  return write([&](auto* out) {
    Wire::WriteInt32(1, code, out);
    Wire::WriteBytes(2, message, out);
    Wire::WriteBytes(3, any.SerializeAsString(), out);
  });
}

grpc::Status to_grpc(const absl::Status& status, const std::string& request_id) {
  if (status.ok()) return grpc::Status::OK;
  if (is_fault(status)) {
    return grpc::Status(grpc::StatusCode::INTERNAL,
                        absl::StrCat("internal error; request id ", request_id));
  }
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message =
      bounded(absl::string_view(status.message().data(), status.message().size()));
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    return grpc::Status(code, message,
                        retry_details(static_cast<int>(code), message, retry_after(status)));
  }
  return grpc::Status(code, message);
}

}  // namespace tandem
