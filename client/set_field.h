// Sets a field of any message by its proto path: "temperature=0.7", "bild.rollback_threshold=0.69",
// "require_contract=EXACT", "chat.messages[0].role=user", "logit_bias.5=1.5".
//
// A repeated number takes "1,2,3" and appends; a repeated string appends one. A message takes
// protobuf text format: "bild={rollback_threshold: 0.69}". Enum values may omit their prefix:
// CONTRACT_EXACT, EXACT. Errors are INVALID_ARGUMENT and name the path, the value and the allowed
// values. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

absl::Status set_field(google::protobuf::Message* message, absl::string_view path,
                       absl::string_view value);

// `assignment`: "PATH=VALUE".
absl::Status set_field(google::protobuf::Message* message, absl::string_view assignment);

}  // namespace tandem
