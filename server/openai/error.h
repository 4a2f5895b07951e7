// Errors in OpenAI's format: an HTTP status and {"error": {message, type, param, code}}. Pure
// functions.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tandem::openai {

// 400: invalid request; 401: invalid credentials; 429: overload, retry later; and so on.
int http_status(const absl::Status& status);

// `message`: the text for the client (server/edge/status_text.h). `param` is the first invalid
// field, `code` the reason of docs/grpc_api.md.
std::string error_json(const absl::Status& status, const std::string& message);
// For errors that the HTTP server detects.
std::string error_json(int http_status);

}  // namespace tandem::openai
