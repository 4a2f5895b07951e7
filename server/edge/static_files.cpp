#include "server/edge/static_files.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

// Images of the page are data URLs. Everything that is not listed is forbidden.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Whether a list of entity tags contains this one, by the weak comparison (RFC 9110, 13.1.2).
bool names_tag(absl::string_view list, absl::string_view tag) {
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part == "*") return true;
    absl::ConsumePrefix(&part, "W/");
    if (part == tag) return true;
  }
  return false;
}

}  // namespace

const StaticFile* find_file(absl::Span<const StaticFile> files, absl::string_view path) {
  const auto found = std::ranges::find(files, path, &StaticFile::path);
  return found == files.end() ? nullptr : &*found;
}

bool accepts_gzip(absl::string_view accept_encoding) {
  bool any = false;
  for (const absl::string_view part : absl::StrSplit(accept_encoding, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, ';');
    const absl::string_view coding = absl::StripAsciiWhitespace(words[0]);
    double weight = 1;
    for (size_t i = 1; i < words.size(); ++i) {
      absl::string_view parameter = absl::StripAsciiWhitespace(words[i]);
      if (!absl::ConsumePrefix(&parameter, "q=") && !absl::ConsumePrefix(&parameter, "Q="))
        continue;
      if (!absl::SimpleAtod(parameter, &weight)) weight = 0;
    }
    if (absl::EqualsIgnoreCase(coding, "gzip")) return weight > 0;
    if (coding == "*") any = weight > 0;
  }
  return any;
}

void respond_with(const StaticFile& file, HttpExchange& exchange) {
  const bool compressed = accepts_gzip(exchange.message.header("accept-encoding"));
  const std::string tag = absl::StrCat("\"", file.hash, compressed ? "-gzip\"" : "\"");
  HttpHeaders headers = {
      {"Content-Type", std::string(file.type)},
      {"ETag", tag},
      {"Vary", "Accept-Encoding"},
      {"Cache-Control", file.unchanging ? "public, max-age=31536000, immutable" : "no-cache"},
      {"Content-Security-Policy", kPolicy},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"}};
  if (compressed) headers.emplace_back("Content-Encoding", "gzip");
  const bool known = names_tag(exchange.message.header("if-none-match"), tag);
  exchange.respond_constant(known ? 304 : 200, headers, compressed ? file.gzip : file.bytes);
}

}  // namespace tandem
