// From the engine's absl::Status to what a client sees.
//
// INTERNAL, UNKNOWN and DATA_LOSS become INTERNAL with a generic text and the request id: the
// detail is for the log. Every error carries a google.rpc.ErrorInfo in its details: a reason for
// programs, and the request id; INVALID_ARGUMENT also a BadRequest with all wrong fields, and
// RESOURCE_EXHAUSTED a RetryInfo. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tandem {

grpc::Status to_grpc(const absl::Status& status, const std::string& request_id);

}  // namespace tandem
