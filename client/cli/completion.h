// Scripts that complete `tandem` in a shell. Flags are asked of `tandem COMMAND --help` when the
// key is pressed, so that they are those of the program that is installed.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cli/commands.h"

namespace tandem::cli {

// `shell`: "bash" or "zsh". Empty for another.
std::string completion_script(absl::string_view shell, absl::Span<const Command> commands);

}  // namespace tandem::cli
