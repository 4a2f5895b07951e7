// Converts API requests to engine requests. Checks everything that does not need the model:
// presence, ranges, NaN, lengths, and fields that this version does not support. The engine checks
// the rest: token ids, lengths in tokens, methods.
//
// Errors are INVALID_ARGUMENT with all invalid fields at once (engine/base/violations.h), each
// "field: value; allowed: range". They never quote prompts. Pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/requests/request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// The caller sets `client` and `deadline`. `request_id` may be empty.
absl::StatusOr<GenerateRequest> generate_request_from(const v1::GenerateRequest& in);
absl::StatusOr<ScoreRequest> score_request_from(const v1::ScoreRequest& in);
absl::StatusOr<TokenizeRequest> tokenize_request_from(const v1::TokenizeRequest& in);

// Whether the response lists tokens, and whether with their texts and bytes.
bool wants_tokens(const v1::GenerateRequest& in);
bool wants_token_texts(const v1::GenerateRequest& in);

// Empty, or at most 128 characters of printable ASCII without spaces.
absl::Status check_request_id(const std::string& id);
absl::Status check_model_name(const std::string& name);

}  // namespace tandem
