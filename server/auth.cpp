#include "server/auth.h"

#include <grpc/grpc_security_constants.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr size_t kMinTokenBytes = 16;

// Takes the same time wherever the texts differ.
bool equal_secrets(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return difference == 0;
}

std::vector<absl::string_view> words_of(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
}

}  // namespace

absl::StatusOr<Authenticator> Authenticator::load(const std::string& token_file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_file(token_file));
  return parse(text, token_file);
}

absl::StatusOr<Authenticator> Authenticator::parse(absl::string_view text,
                                                   absl::string_view file_name) {
  Authenticator out;
  out.required_ = true;
  // A file that is being written, or that was cut off, may end within a token.
  if (!text.empty() && text.back() != '\n') {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": the last line has no newline; allowed: complete lines"));
  }
  absl::flat_hash_map<absl::string_view, int> lines;  // of tokens
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> words = words_of(line);
    // The line itself is a secret: errors give its number only.
    if (words.size() > 2 || words.back().size() < kMinTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_name, ":", number,
                       ": allowed: NAME TOKEN or TOKEN, with a token of at "
                       "least ",
                       kMinTokenBytes, " characters"));
    }
    const auto [first, fresh] = lines.try_emplace(words_of(line).back(), number);
    if (!fresh) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ":", number, ": the token of line ",
                                                     first->second, "; allowed: each token once"));
    }
    out.tokens_.emplace_back(
        words.size() == 2 ? std::string(words[0]) : absl::StrCat("token-", number), words.back());
  }
  if (out.tokens_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": no tokens; allowed: at least one"));
  }
  return out;
}

std::set<std::string> Authenticator::names() const {
  std::set<std::string> names;
  for (const auto& [name, secret] : tokens_) names.insert(name);
  return names;
}

absl::StatusOr<std::string> Authenticator::check(absl::string_view authorization) const {
  const auto missing = [] {
    return with_reason(absl::UnauthenticatedError("needs `authorization: Bearer TOKEN`"),
                       "CREDENTIALS_MISSING");
  };
  if (authorization.empty()) return missing();
  absl::string_view token = authorization;
  if (!absl::StartsWithIgnoreCase(token, "Bearer ")) return missing();
  token = absl::StripAsciiWhitespace(token.substr(7));
  const std::string* name = nullptr;
  for (const auto& [who, secret] : tokens_) {
    if (equal_secrets(token, secret)) name = &who;
  }
  if (name == nullptr) {
    return with_reason(absl::PermissionDeniedError("unknown bearer token"), "CREDENTIALS_UNKNOWN");
  }
  return *name;
}

absl::StatusOr<std::string> Authenticator::identify(absl::string_view authorization,
                                                    const HttpPeer& peer) const {
  if (required_) return check(authorization);
  if (!peer.certificate_name.empty()) return peer.certificate_name;
  return host_of_peer(peer.address);
}

absl::StatusOr<std::string> Authenticator::identify(const grpc::ServerContextBase& context) const {
  if (required_) {
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found == metadata.end()) return check("");
    return check(absl::string_view(found->second.data(), found->second.size()));
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
