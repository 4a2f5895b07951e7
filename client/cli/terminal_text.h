// Makes text of a server safe to print on a terminal.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

// `text` with U+FFFD for every character that controls a terminal: C0 except newline and tab, DEL,
// C1, bytes that are not UTF-8, and the marks that change the direction of text. The colors that
// this program uses remain.
std::string terminal_text(absl::string_view text);

}  // namespace tandem::cli
