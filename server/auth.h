// Identifies the client of a call: by bearer token or client certificate if required, else by the
// peer's address. Fair scheduling and quotas use the name.
//
// Immutable; thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/edge/bearer_tokens.h"
#include "server/edge/peer.h"

namespace tandem {

class Authenticator {
 public:
  Authenticator() = default;  // accepts every client
  explicit Authenticator(BearerTokens required) : tokens_(std::move(required)) {}

  // UNAUTHENTICATED without a required token, PERMISSION_DENIED with an unknown one.
  absl::StatusOr<std::string> identify(const grpc::ServerContextBase& context) const;

  // The same for HTTP, from the value of the `authorization` header.
  absl::StatusOr<std::string> identify(absl::string_view authorization, const HttpPeer& peer) const;

  // Of the required tokens.
  std::set<std::string> names() const {
    return tokens_.has_value() ? tokens_->names() : std::set<std::string>();
  }

 private:
  std::optional<BearerTokens> tokens_;
};

// "ipv4:10.0.0.7:41234" -> "10.0.0.7": all connections of a host are one client.
std::string host_of_peer(const std::string& peer);

}  // namespace tandem
