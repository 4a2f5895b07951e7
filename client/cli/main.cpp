// `tandem`: the command-line client of a Tandem server.
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "engine/base/suggest.h"

namespace {

using tandem::cli::Command;

void usage(std::FILE* to) {
  std::fputs(
      "tandem: command-line client of a Tandem server.\n\n"
      "Usage: tandem COMMAND [flags]\n\n"
      "  tandem generate 'def fib(n):' --max-new-tokens 64\n"
      "  tandem chat\n"
      "  tandem models --server 127.0.0.1:50051\n\n"
      "Commands:\n",
      to);
  for (const Command& command : tandem::cli::commands()) {
    std::fprintf(to, "  %-12s %s\n", command.name, command.summary);
  }
  std::fputs(
      "\n`tandem COMMAND --help` lists the flags of a command.\n\n"
      "Environment:\n"
      "  TANDEM_SERVER  server address, if --server is not given (default 127.0.0.1:50051)\n"
      "  TANDEM_TOKEN   bearer token\n\n"
      "Exit status: 0 success, 1 the request failed, 2 wrong usage.\n",
      to);
}

int unknown_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : tandem::cli::commands()) names.emplace_back(command.name);
  const std::string similar = tandem::nearest(name, names);
  std::fprintf(stderr, "tandem: no command \"%s\"%s See tandem --help.\n", name.c_str(),
               similar.empty() ? "." : ("; did you mean " + similar + "?").c_str());
  return tandem::cli::kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // `tandem generate | head` ends when head does
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    usage(stdout);
    return tandem::cli::kSuccess;
  }
  const auto* const command = tandem::cli::find_command(name == "--version" ? "version" : name);
  if (command != nullptr) {
    return tandem::cli::run_command(*command, tandem::cli::Args(argv + 2, argv + argc));
  }
  if (!name.empty()) return unknown_command(name);
  usage(stderr);
  return tandem::cli::kUsage;
}
