// `tandem`: the command line of a Tandem server's clients.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "client/cli/command.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const tandem::cli::Args&);
};

constexpr Command kCommands[] = {
    {"generate", "generate text, streamed", tandem::cli::generate_command},
    {"models", "what the server serves", tandem::cli::models_command},
    {"tokenize", "text to token ids", tandem::cli::tokenize_command},
    {"detokenize", "token ids to text", tandem::cli::detokenize_command},
    {"score", "log-probabilities of given text", tandem::cli::score_command},
    {"health", "is the server ready?", tandem::cli::health_command},
    {"version", "version of this program", tandem::cli::version_command},
};

void usage(std::FILE* to) {
  std::fputs("tandem COMMAND [flags]: asks a Tandem server.\n\nCommands:\n", to);
  for (const Command& command : kCommands) {
    std::fprintf(to, "  %-12s %s\n", command.name, command.summary);
  }
  std::fputs(
      "\n`tandem COMMAND --help` lists the flags of each. The server is --server, else\n"
      "$TANDEM_SERVER, else 127.0.0.1:50051; $TANDEM_TOKEN is sent as bearer token.\n"
      "Exit status: 0 fine, 1 the request failed, 2 wrong usage.\n",
      to);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // `tandem generate | head` ends with head
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    usage(stdout);
    return tandem::cli::kFine;
  }
  if (name == "--version") return tandem::cli::version_command({});
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(tandem::cli::Args(argv + 2, argv + argc));
  }
  if (name.empty()) {
    usage(stderr);
  } else {
    std::fprintf(stderr, "tandem: no command \"%s\". See tandem --help.\n", name.c_str());
  }
  return tandem::cli::kUsage;
}
