#include "client/cli/commands.h"

namespace tandem::cli {
namespace {

constexpr Command kCommands[] = {
    {"generate", "generate text, streamed", generate_command},
    {"chat", "a conversation in the terminal", chat_command},
    {"compare", "one prompt decoded by several methods", compare_command},
    {"bench", "latencies and throughput under load", bench_command},
    {"models", "what the server serves", models_command},
    {"tokenize", "text to token ids", tokenize_command},
    {"detokenize", "token ids to text", detokenize_command},
    {"score", "log-probabilities of given text", score_command},
    {"health", "is the server ready?", health_command},
    {"completion", "a script that completes commands and flags in a shell", completion_command},
    {"version", "version of this program", version_command},
};

}  // namespace

absl::Span<const Command> commands() { return kCommands; }

const Command* find_command(absl::string_view name) {
  for (const Command& command : kCommands) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

}  // namespace tandem::cli
