#include "server/openai/error.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/violations.h"
#include "server/edge/status_text.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

std::string json(const std::string& message, const char* type, const std::string& param,
                 const std::string& code) {
  return absl::StrCat("{\"error\":{\"message\":", json_string(message), ",\"type\":\"", type,
                      "\",\"param\":", param.empty() ? "null" : json_string(param),
                      ",\"code\":", code.empty() ? "null" : json_string(code), "}}");
}

// Error types of OpenAI's API.
const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

const char* meaning(int status) {
  switch (status) {
    case 408:
      return "the request did not arrive in time";
    case 413:
      return "the body is too long; allowed: server.max_receive_bytes, and three quarters of "
             "server.max_transport_bytes";
    case 417:
      return "Expect: allowed: 100-continue";
    case 429:
      return "too many connections or unread requests; try again later";
    case 431:
      return "the headers are too long; allowed: server.max_metadata_bytes";
    case 501:
      return "Transfer-Encoding: allowed: chunked";
    case 505:
      return "allowed: HTTP/1.1, HTTP/1.0";
    default:
      return "not an HTTP/1.1 request";
  }
}

}  // namespace

int http_status(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return reason_of(status) == "CREDENTIALS_UNKNOWN" ? 401 : 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:  // a retry would be too large again
      return reason_of(status) == "ANSWER_TOO_LARGE" ? 400 : 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string error_json(const absl::Status& status, const std::string& message) {
  const std::vector<Violation> wrong = violations_of(status);
  const int http = http_status(status);
  // Reasons are named so that in lower case they match OpenAI's codes, where there are any.
  std::string code = absl::AsciiStrToLower(reason_of(status));
  if (http == 401) code = "invalid_api_key";
  std::string param = wrong.empty() ? "" : wrong[0].field;
  if (code == "model_not_found") param = "model";
  if (code == "adapter_not_found") param = "tandem.adapter";
  return json(message, type_of(http), param, code);
}

std::string error_json(int http_status) {
  return json(meaning(http_status), type_of(http_status), "", "");
}

}  // namespace tandem::openai
