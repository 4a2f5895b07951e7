// From the engine's absl::Status to what a client sees.
//
// INTERNAL, UNKNOWN and DATA_LOSS become INTERNAL with a generic text and the request id: the
// detail is for the log. Every error carries a google.rpc.ErrorInfo in its details: a reason for
// programs, and the request id; INVALID_ARGUMENT also a BadRequest with all wrong fields, and
// RESOURCE_EXHAUSTED a RetryInfo. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/base/status.h"

namespace tandem {

grpc::Status to_grpc(const absl::Status& status, const std::string& request_id);

// Whether the cause is a fault of ours that the log should show in full.
bool is_fault(const absl::Status& status);

// "INVALID_ARGUMENT"
const char* code_name(absl::StatusCode code);

}  // namespace tandem
