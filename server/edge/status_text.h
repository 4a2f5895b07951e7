// The parts of an absl::Status that clients may see, over gRPC and over HTTP. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Whether the status is an internal fault, which the log shows in full.
bool is_fault(const absl::Status& status);

// `status`, or for a fault an INTERNAL error with the request id only. The log has the details.
absl::Status client_status(const absl::Status& status, const std::string& request_id);

// "INVALID_ARGUMENT"
const char* code_name(absl::StatusCode code);

// The reason of docs/grpc_api.md, such as "QUEUE_FULL". Without one: "INVALID_FIELD" or the code's
// name.
std::string reason_of(const absl::Status& status);

// The delay before a retry of RESOURCE_EXHAUSTED, in milliseconds.
int64_t retry_after_ms(const absl::Status& status);

// At most `most` bytes of whole characters, then "..." if the text is longer.
std::string bounded_text(absl::string_view text, size_t most);

}  // namespace tandem
