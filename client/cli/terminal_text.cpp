#include "client/cli/terminal_text.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/match.h"

namespace tandem::cli {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// provenance.cpp, text_diff.cpp and the titles of commands.
constexpr std::array<absl::string_view, 10> kColours = {
    "\x1b[0m",  "\x1b[1m",  "\x1b[2m",  "\x1b[31;9m", "\x1b[32m",
    "\x1b[33m", "\x1b[34m", "\x1b[35m", "\x1b[36m",   "\x1b[94m"};

// The bytes of the UTF-8 character at the start of `text`, and the character. 0: ill-formed.
struct Character {
  size_t bytes = 0;
  uint32_t code = 0;
};
Character first_character(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, lead};
  const size_t bytes = lead >= 0xF0 && lead <= 0xF4   ? 4
                       : lead >= 0xE0 && lead <= 0xEF ? 3
                       : lead >= 0xC2 && lead <= 0xDF ? 2
                                                      : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  uint32_t code = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (at(i) & 0x3Fu);
  }
  const uint32_t least = bytes == 2 ? 0x80 : bytes == 3 ? 0x800 : 0x10000;
  if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {bytes, code};
}

bool controls(uint32_t c) {
  if (c == '\n' || c == '\t') return false;
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string terminal_text(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto* const colour = std::find_if(kColours.begin(), kColours.end(),
                                            [&](auto c) { return absl::StartsWith(text, c); });
    if (colour != kColours.end()) {
      out.append(colour->data(), colour->size());
      text.remove_prefix(colour->size());
      continue;
    }
    const Character c = first_character(text);
    const size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    const absl::string_view shown =
        c.bytes == 0 || controls(c.code) ? kReplacement : text.substr(0, bytes);
    out.append(shown.data(), shown.size());
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace tandem::cli
