// Converts an absl::Status to the gRPC status for the client.
//
// INTERNAL, UNKNOWN and DATA_LOSS become INTERNAL with a generic message and the request id; the
// log has the details. Every error carries a google.rpc.ErrorInfo with a machine-readable reason
// and the request id. INVALID_ARGUMENT also has a BadRequest with all invalid fields,
// RESOURCE_EXHAUSTED a RetryInfo. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tandem {

grpc::Status to_grpc(const absl::Status& status, const std::string& request_id);

}  // namespace tandem
