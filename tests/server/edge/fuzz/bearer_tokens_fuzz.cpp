// Token files: every token of an accepted file names its client, and an error quotes no token. The
// text is used as a header, too.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/edge/bearer_tokens.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;

void check_header(const BearerTokens& tokens, const std::string& header) {
  const auto who = tokens.check(header);
  if (who.ok()) return check(tokens.names().contains(*who), "an unknown name", *who);
  check(who.status().code() == absl::StatusCode::kUnauthenticated ||
            who.status().code() == absl::StatusCode::kPermissionDenied,
        "another error", who.status().ToString());
}

void run(const std::string& text) {
  const auto tokens = BearerTokens::parse(text, "f");
  if (!tokens.ok()) {
    fuzz::check_refusal(tokens.status());
    for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \t\v\f\r\n"))) {
      check(word.size() < BearerTokens::kMinTokenBytes ||
                tokens.status().message().find(word) == absl::string_view::npos,
            "a token in an error", std::string(word));
    }
    return;
  }
  check(!tokens->names().empty() && text.back() == '\n', "an incomplete file");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\v\f\r"), absl::SkipEmpty());
    const auto who = tokens->check("bearer  " + words.back());
    check(who.ok() && (words.size() == 1 || *who == words.front()), "another client",
          std::string(line));
    check_header(*tokens, words.front());
  }
  check_header(*tokens, text);
  check_header(*tokens, "Bearer " + text);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::run(tandem::fuzz::text_of(data, size));
  return 0;
}
