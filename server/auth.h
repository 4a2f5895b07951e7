// Who calls: a bearer token or a client certificate where they are asked for, else the peer's
// address. The name is what fairness between clients goes by.
//
// Immutable after load(); thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

class Authenticator {
 public:
  Authenticator() = default;  // lets everyone in

  // One `NAME TOKEN` or `TOKEN` per line; blank lines and lines that begin with # are skipped.
  static absl::StatusOr<Authenticator> load(const std::string& token_file);
  static absl::StatusOr<Authenticator> parse(absl::string_view text, absl::string_view file_name);

  // UNAUTHENTICATED without a token where one is needed, PERMISSION_DENIED for a wrong one.
  absl::StatusOr<std::string> identify(const grpc::ServerContextBase& context) const;

  // As above where there is no TLS: by the value of the header or metadata `authorization`, and the
  // peer as gRPC names it.
  absl::StatusOr<std::string> identify(absl::string_view authorization,
                                       const std::string& peer) const;

  // As above, on the value of the `authorization` metadata. Empty: there was none.
  absl::StatusOr<std::string> check(absl::string_view authorization) const;

 private:
  std::vector<std::pair<std::string, std::string>> tokens_;  // name, token
  bool required_ = false;
};

// "ipv4:10.0.0.7:41234" -> "10.0.0.7": one host is one client, whatever its connections.
std::string host_of_peer(const std::string& peer);

}  // namespace tandem
