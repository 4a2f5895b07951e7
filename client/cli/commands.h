// All commands of `tandem`.
#pragma once

#include "absl/types/span.h"
#include "client/cli/command.h"

namespace tandem::cli {

absl::Span<const Command> commands();

// Null if there is no such command.
const Command* find_command(absl::string_view name);

}  // namespace tandem::cli
