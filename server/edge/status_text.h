// What a client may know of an absl::Status, whichever door it came by: the words that gRPC's
// errors and HTTP's have in common. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Whether the cause is a fault of ours that the log should show in full.
bool is_fault(const absl::Status& status);

// `status`; of a fault no more than that it is one, and the request id. The detail is for the log.
absl::Status client_status(const absl::Status& status, const std::string& request_id);

// "INVALID_ARGUMENT"
const char* code_name(absl::StatusCode code);

// "QUEUE_FULL": a reason of docs/api.md. Where nobody gave one, the fields are wrong or the code
// says it all.
std::string reason_of(const absl::Status& status);

// Of RESOURCE_EXHAUSTED: milliseconds until it may be worth trying again.
int64_t retry_after_ms(const absl::Status& status);

// At most so many bytes of it, and "..." where it is cut; whole characters.
std::string bounded_text(absl::string_view text, size_t most);

}  // namespace tandem
