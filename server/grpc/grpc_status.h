// Converts an absl::Status to the gRPC status for the client.
//
// INTERNAL, UNKNOWN and DATA_LOSS become INTERNAL with a generic message and the request id; the
// log has the details. Every error carries a google.rpc.ErrorInfo with a machine-readable reason
// and the request id. INVALID_ARGUMENT also has a BadRequest with all invalid fields,
// RESOURCE_EXHAUSTED a RetryInfo. Pure functions.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tandem {

grpc::Status to_grpc(const absl::Status& status, const std::string& request_id);

// Adds the trailer `grpc-retry-pushback-ms`, which gRPC's own retries obey (gRFC A6): the delay of
// RetryInfo, or -1 (no retry) if a retry would fail in the same way. Only for RESOURCE_EXHAUSTED
// and UNAVAILABLE. Call before the status is sent.
void add_retry_pushback(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace tandem
