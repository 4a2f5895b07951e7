// Errors as OpenAI's clients know them: an HTTP status and {"error": {message, type, param, code}}.
// The message is ours. Pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tandem::openai {

// 400 for what is wrong with a request, 401 for its credentials, 429 for what is worth another try.
int http_status(const absl::Status& status);

// `message`: what the client may know (server/status_text.h). `param` is the first wrong field,
// `code` the reason of docs/grpc_api.md.
std::string error_json(const absl::Status& status, const std::string& message);
// For what the HTTP server itself refuses.
std::string error_json(int http_status);

}  // namespace tandem::openai
