#include "server/http/cors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

bool is_allowed(const std::vector<std::string>& allowed, const std::string& origin) {
  return !origin.empty() && std::ranges::any_of(allowed, [&](const std::string& one) {
    return one == "*" || one == origin;
  });
}

// A list of header names. The values are repeated in a response, so other characters are dropped.
std::string names_in(const std::string& list) {
  std::string out;
  for (const char c : list) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == ',' || c == ' ') {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

bool is_origin(absl::string_view origin) {
  if (origin == "*") return true;
  if (!absl::ConsumePrefix(&origin, "https://") && !absl::ConsumePrefix(&origin, "http://")) {
    return false;
  }
  return !origin.empty() && std::ranges::all_of(origin, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view(".-:[]").find(c) != absl::string_view::npos;
  });
}

HttpHeaders cors_headers(const std::vector<std::string>& allowed, const HttpMessage& head) {
  if (allowed.empty()) return {};
  const std::string origin = head.header("origin");
  if (!is_allowed(allowed, origin) || !is_origin(origin)) return {{"Vary", "Origin"}};
  return {{"Vary", "Origin"},
          {"Access-Control-Allow-Origin", origin},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After, Retry-After-Ms"}};
}

std::optional<HttpReply> preflight_reply(const std::vector<std::string>& allowed,
                                         const HttpMessage& head) {
  const bool preflight =
      head.method == "OPTIONS" && !head.header("access-control-request-method").empty();
  if (!preflight || !is_allowed(allowed, head.header("origin"))) return std::nullopt;
  return HttpReply{
      200,
      {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
       {"Access-Control-Allow-Headers", names_in(head.header("access-control-request-headers"))},
       {"Access-Control-Max-Age", "600"}},
      ""};
}

}  // namespace tandem
