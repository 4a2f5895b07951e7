// From the wire to the engine's terms. Every field is checked here that can be checked without the
// model: presence, number ranges, NaN, lengths, and that nothing is set which this version does not
// offer. The engine checks what needs the model: token ids, lengths in tokens, methods.
//
// Errors are INVALID_ARGUMENT with all wrong fields at once (engine/base/violations.h), each
// "field: value; allowed: range". They never quote prompts.
// Pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem {

// Leaves `client` and `deadline` to the caller. `request_id` may stay empty.
absl::StatusOr<GenerateRequest> generate_request_from(const v1::GenerateRequest& in);
absl::StatusOr<ScoreRequest> score_request_from(const v1::ScoreRequest& in);
absl::StatusOr<TokenizeRequest> tokenize_request_from(const v1::TokenizeRequest& in);

// What of the tokens goes back: their list at all, and with it their texts and bytes.
bool wants_tokens(const v1::GenerateRequest& in);
bool wants_token_texts(const v1::GenerateRequest& in);

// Empty, or at most 128 characters of printable ASCII without spaces.
absl::Status check_request_id(const std::string& id);
absl::Status check_model_name(const std::string& name);

}  // namespace tandem
