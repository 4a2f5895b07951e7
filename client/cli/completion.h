// Scripts that complete `tandem` in a shell. They read the flags from `tandem COMMAND --help` at
// each completion, so the flags are those of the installed program.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cli/commands.h"

namespace tandem::cli {

// `shell`: "bash" or "zsh". Empty for any other shell.
std::string completion_script(absl::string_view shell, absl::Span<const Command> commands);

}  // namespace tandem::cli
