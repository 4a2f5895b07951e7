#include "engine/base/quote.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem {

std::string quote_value(absl::string_view value, size_t max) {
  size_t end = std::min(value.size(), max);
  // Do not split a character.
  while (end < value.size() && end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) {
    --end;
  }
  return absl::StrCat("\"", absl::Utf8SafeCEscape(value.substr(0, end)),
                      end < value.size() ? "...\"" : "\"");
}

}  // namespace tandem
