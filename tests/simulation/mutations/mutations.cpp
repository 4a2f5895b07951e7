#include "tests/simulation/mutations/mutations.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "absl/strings/str_cat.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/simulation.h"

#ifndef TANDEM_MUTATIONS
#error "this program needs the sources to be built with TANDEM_MUTATIONS"
#endif

namespace tandem::simulation {
namespace {

// Two of three count from the first seed; every third one has sources and replicas.
uint64_t hunting_seed(uint64_t i) { return i % 3 == 2 ? kFirstWithReplicas + i / 3 : i - i / 3; }

// The child process: prints "seed message" on `out` when a seed fails.
[[noreturn]] void look(Mutation mutation, uint64_t seeds, int out) {
  active_mutation = mutation;
  dup2(out, STDERR_FILENO);  // messages of checks that abort
  for (uint64_t i = 0; i < seeds; ++i) {
    const uint64_t seed = hunting_seed(i);
    dprintf(out, "\n%lu ", static_cast<unsigned long>(seed));
    alarm(5);  // a seed that does not end has failed, too
    Report report;
    try {
      report = simulate(seed);
    } catch (const std::exception& e) {
      dprintf(out, "%s", e.what());
      _exit(1);
    }
    if (!report.broken.empty()) {
      dprintf(out, "%s", report.broken.front().c_str());
      _exit(1);
    }
    // The same seed must give the same trace.
    if (i < 40 && simulate(seed).trace != report.trace) {
      dprintf(out, "two runs of the seed differ");
      _exit(1);
    }
  }
  _exit(0);
}

}  // namespace

const std::vector<NamedMutation>& mutations() {
  static const std::vector<NamedMutation> all = {
#define TANDEM_MUTATION(name, invariant, what) {Mutation::k##name, #name, invariant, what},
      TANDEM_MUTATION_LIST(TANDEM_MUTATION)
#undef TANDEM_MUTATION
  };
  return all;
}

Hunt hunt(const NamedMutation& mutation, uint64_t seeds) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return {};
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(pipe_ends[0]);
    look(mutation.mutation, seeds, pipe_ends[1]);
  }
  close(pipe_ends[1]);
  // Only the last line matters.
  std::string last;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) {
    last.append(buffer, static_cast<size_t>(n));
    const size_t line = last.rfind("\n", last.size() - 1);
    size_t begin = line;
    // A check's message may have several lines: keep everything from the last seed number on.
    const auto number = [&](size_t at) {
      return at + 1 < last.size() && last[at + 1] >= '0' && last[at + 1] <= '9';
    };
    while (begin != std::string::npos && !number(begin)) {
      begin = begin == 0 ? std::string::npos : last.rfind("\n", begin - 1);
    }
    if (begin != std::string::npos && begin > 0) last.erase(0, begin);
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Hunt result;
  result.caught = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  if (!result.caught) return result;
  result.seed = std::strtoull(last.c_str(), nullptr, 10);
  const size_t text = last.find(' ');
  result.message = text == std::string::npos ? "" : last.substr(text + 1);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) result.message = "no end in 5 s";
  return result;
}

}  // namespace tandem::simulation
