// Cross-origin requests of browsers (CORS): only pages of the allowed origins may read responses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/edge/http_server.h"

namespace tandem {

// "https://example.com", "http://localhost:3000", or "*" for all pages.
bool is_origin(absl::string_view origin);

// Headers of every response to a request with this head.
HttpHeaders cors_headers(const std::vector<std::string>& allowed, const HttpMessage& head);

// The response to a preflight request of an allowed origin; nullopt for other requests.
std::optional<HttpReply> preflight_reply(const std::vector<std::string>& allowed,
                                         const HttpMessage& head);

}  // namespace tandem
