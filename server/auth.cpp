#include "server/auth.h"

#include <grpc/grpc_security_constants.h>

namespace tandem {

absl::StatusOr<std::string> Authenticator::identify(absl::string_view authorization,
                                                    const HttpPeer& peer) const {
  if (tokens_.has_value()) return tokens_->check(authorization);
  if (!peer.certificate_name.empty()) return peer.certificate_name;
  return host_of_peer(peer.address);
}

absl::StatusOr<std::string> Authenticator::identify(const grpc::ServerContextBase& context) const {
  if (tokens_.has_value()) {
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found == metadata.end()) return tokens_->check("");
    return tokens_->check(absl::string_view(found->second.data(), found->second.size()));
  }
  if (const auto auth = context.auth_context(); auth != nullptr && auth->IsPeerAuthenticated()) {
    // gRPC's own peer identity would be the first alternative name.
    const auto name = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    const auto identity = name.empty() ? auth->GetPeerIdentity() : name;
    if (!identity.empty()) return std::string(identity[0].data(), identity[0].size());
  }
  return host_of_peer(context.peer());
}

std::string host_of_peer(const std::string& peer) {
  const std::string host = host_of(peer);
  return host.empty() ? peer : host;
}

}  // namespace tandem
