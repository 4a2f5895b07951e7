#include "client/cli/commands.h"

namespace tandem::cli {

absl::Span<const Command> commands() {
  static const Command kCommands[] = {
      generate_command(),    chat_command(),       serve_and_chat_command(), pull_command(),
      compare_command(),     bench_command(),      models_command(),         adapters_command(),
      deployments_command(), tokenize_command(),   detokenize_command(),     score_command(),
      health_command(),      completion_command(), version_command(),
  };
  return kCommands;
}

const Command* find_command(absl::string_view name) {
  for (const Command& command : commands()) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

}  // namespace tandem::cli
