#include "server/edge/log_value.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace tandem {
namespace {

// Removes the first character of `text`. If it is ill-formed, removes one byte and returns U+FFFD.
char32_t take_character(absl::string_view* text) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>((*text)[i]));
  };
  const uint32_t lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  const auto ill_formed = [&] {
    text->remove_prefix(1);
    return U'\uFFFD';
  };
  if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || text->size() < length) return ill_formed();
  uint32_t code = length == 1 ? lead : lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return ill_formed();
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    return ill_formed();
  }
  text->remove_prefix(length);
  return static_cast<char32_t>(code);
}

// Control characters, line and paragraph separators, direction marks and the byte order mark.
bool is_hidden(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

}  // namespace

std::string log_quoted(absl::string_view value, bool cut) {
  std::string out = "\"";
  while (!value.empty()) {
    const absl::string_view rest = value;
    const char32_t c = take_character(&value);
    if (c == U'"' || c == U'\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == U'\n') {
      out += "\\n";
    } else if (c == U'\uFFFD') {
      out += "\uFFFD";
    } else if (is_hidden(c)) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      out.append(rest.data(), rest.size() - value.size());
    }
  }
  return out + (cut ? "...\"" : "\"");
}

std::string log_text(absl::string_view value, bool cut) {
  const bool plain =
      !cut && !value.empty() && std::all_of(value.begin(), value.end(), [](unsigned char c) {
        return absl::ascii_isgraph(c) && c != '"' && c != '\\' && c != '=';
      });
  return plain ? std::string(value) : log_quoted(value, cut);
}

bool is_json_number(absl::string_view value) {
  return !value.empty() && (absl::ascii_isdigit(static_cast<unsigned char>(value.back()))) &&
         std::all_of(value.begin(), value.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || c == '-' || c == '+' || c == '.' || c == 'e';
         });
}

}  // namespace tandem
