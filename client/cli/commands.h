// The commands of `tandem`.
#pragma once

#include "absl/types/span.h"
#include "client/cli/command.h"

namespace tandem::cli {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Args&);
};

absl::Span<const Command> commands();

// Null: there is none of that name.
const Command* find_command(absl::string_view name);

}  // namespace tandem::cli
