// Identifies the client of a call: by bearer token or client certificate if required, else by the
// peer's address. Fair scheduling and quotas use the name.
//
// Immutable after load(); thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/edge/peer.h"

namespace tandem {

class Authenticator {
 public:
  Authenticator() = default;  // accepts every client

  // One `NAME TOKEN` or `TOKEN` per line; blank lines and lines that begin with # are skipped. A
  // name may have several tokens. INVALID_ARGUMENT, without any secret, for a token that is given
  // twice and for a file whose last line is incomplete.
  static absl::StatusOr<Authenticator> load(const std::string& token_file);
  static absl::StatusOr<Authenticator> parse(absl::string_view text, absl::string_view file_name);

  // UNAUTHENTICATED without a required token, PERMISSION_DENIED with an unknown one.
  absl::StatusOr<std::string> identify(const grpc::ServerContextBase& context) const;

  // The same for HTTP, from the value of the `authorization` header.
  absl::StatusOr<std::string> identify(absl::string_view authorization, const HttpPeer& peer) const;

  // Checks the value of `authorization`; empty if the call has none.
  absl::StatusOr<std::string> check(absl::string_view authorization) const;

  // Of all tokens.
  std::set<std::string> names() const;

 private:
  std::vector<std::pair<std::string, std::string>> tokens_;  // name, token
  bool required_ = false;
};

// "ipv4:10.0.0.7:41234" -> "10.0.0.7": all connections of a host are one client.
std::string host_of_peer(const std::string& peer);

}  // namespace tandem
