#include "server/edge/bearer_tokens.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/read_file.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Takes the same time wherever the texts differ.
bool equal_secrets(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return difference == 0;
}

std::vector<absl::string_view> words_of(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t\v\f\r"), absl::SkipEmpty());
}

}  // namespace

absl::StatusOr<BearerTokens> BearerTokens::load(const std::string& file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read_file(file));
  return parse(text, file);
}

absl::StatusOr<BearerTokens> BearerTokens::parse(absl::string_view text,
                                                 absl::string_view file_name) {
  BearerTokens out;
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

std::set<std::string> BearerTokens::names() const {
  std::set<std::string> names;
  for (const auto& [name, secret] : tokens_) names.insert(name);
  return names;
}

absl::StatusOr<std::string> BearerTokens::check(absl::string_view authorization) const {
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

}  // namespace tandem
