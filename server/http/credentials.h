// The credentials of an HTTP request: the header Authorization, or x-api-key as Anthropic's clients
// send it.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "server/edge/http_reader.h"

namespace tandem {

// As the value of Authorization: "Bearer TOKEN". Empty: none.
inline std::string credentials_of(const HttpMessage& head) {
  std::string authorization = head.header("authorization");
  if (!authorization.empty()) return authorization;
  const std::string key = head.header("x-api-key");
  return key.empty() ? "" : absl::StrCat("Bearer ", key);
}

}  // namespace tandem
