// `tandem`: the command line of a Tandem server's clients.
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "engine/base/suggest.h"

namespace {

void usage(std::FILE* to) {
  std::fputs("tandem COMMAND [flags]: asks a Tandem server.\n\nCommands:\n", to);
  for (const tandem::cli::Command& command : tandem::cli::commands()) {
    std::fprintf(to, "  %-12s %s\n", command.name, command.summary);
  }
  std::fputs(
      "\n`tandem COMMAND --help` lists the flags of each. The server is --server, else\n"
      "$TANDEM_SERVER, else 127.0.0.1:50051; $TANDEM_TOKEN is sent as bearer token.\n"
      "Exit status: 0 fine, 1 the request failed, 2 wrong usage.\n",
      to);
}

int no_such_command(const std::string& name) {
  std::vector<std::string> names;
  for (const tandem::cli::Command& command : tandem::cli::commands()) {
    names.emplace_back(command.name);
  }
  const std::string meant = tandem::nearest(name, names);
  std::fprintf(stderr, "tandem: no command \"%s\"%s See tandem --help.\n", name.c_str(),
               meant.empty() ? "." : ("; did you mean " + meant + "?").c_str());
  return tandem::cli::kUsage;
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
  if (const auto* command = tandem::cli::find_command(name)) {
    return command->run(tandem::cli::Args(argv + 2, argv + argc));
  }
  if (!name.empty()) return no_such_command(name);
  usage(stderr);
  return tandem::cli::kUsage;
}
