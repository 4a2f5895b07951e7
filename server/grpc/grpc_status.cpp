#include "server/grpc/grpc_status.h"

#include <google/protobuf/util/time_util.h>

#include <string>

#include "engine/base/violations.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/edge/status_text.h"

namespace tandem {
namespace {

// The message is sent percent-encoded (up to three bytes per byte) and again in the details, in
// base64, which also hold the field descriptions. Clients accept 8 KiB in total.
constexpr size_t kMaxMessage = 1100;
constexpr size_t kMaxPart = 400;

// A serialized google.rpc.Status, the machine-readable form.
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
    const std::string field = bounded_text(v.field, kMaxPart);
    const std::string description = bounded_text(v.description, kMaxPart);
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
  const absl::Status visible = client_status(status, request_id);
  const std::string message = bounded_text(
      absl::string_view(visible.message().data(), visible.message().size()), kMaxMessage);
  return grpc::Status(static_cast<grpc::StatusCode>(visible.code()), message,
                      details(visible, message, request_id));
}

void add_retry_pushback(const absl::Status& status, grpc::ServerContextBase* context) {
  const bool exhausted = status.code() == absl::StatusCode::kResourceExhausted;
  if (!exhausted && status.code() != absl::StatusCode::kUnavailable) return;
  // A draining server answers no retry, but the client's next connection may be to another one.
  const bool hopeless = reason_of(status) == "ANSWER_TOO_LARGE";
  context->AddTrailingMetadata("grpc-retry-pushback-ms",
                               std::to_string(hopeless ? -1 : retry_after_ms(status)));
}

}  // namespace tandem
