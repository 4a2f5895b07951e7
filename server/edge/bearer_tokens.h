// The file of bearer tokens, and the `authorization` header of a call.
//
// Immutable after load(); thread-safe.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

class BearerTokens {
 public:
  static constexpr size_t kMinTokenBytes = 16;

  // One `NAME TOKEN` or `TOKEN` per line; blank lines and lines that begin with # are skipped. A
  // name may have several tokens. INVALID_ARGUMENT, without any secret, for a token that is given
  // twice and for a file whose last line is incomplete.
  static absl::StatusOr<BearerTokens> load(const std::string& file);
  static absl::StatusOr<BearerTokens> parse(absl::string_view text, absl::string_view file_name);

  // The name of the client, from the value of `authorization`; empty if the call has none.
  // UNAUTHENTICATED without a bearer token, PERMISSION_DENIED with an unknown one.
  absl::StatusOr<std::string> check(absl::string_view authorization) const;

  // Of all tokens.
  std::set<std::string> names() const;

 private:
  std::vector<std::pair<std::string, std::string>> tokens_;  // name, token
};

}  // namespace tandem
