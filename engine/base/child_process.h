// Child processes that end with this one.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The path of a program in the folder of this program; just `name`, for a search of PATH, if there
// is none.
std::string sibling_program(absl::string_view name);

// Movable. A child that still runs when the object is destroyed gets SIGTERM and is waited for. The
// kernel also sends SIGTERM to it when the thread that started it ends.
class ChildProcess {
 public:
  struct Options {
    bool capture_output = false;  // standard output goes to read_output()
    bool own_group = false;       // Ctrl-C of the terminal does not reach it
    std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
  };

  // args: the program (a path, or a name in PATH) and its arguments. Its signal mask is empty.
  // NOT_FOUND: no such program. UNAVAILABLE: it cannot be started.
  static absl::StatusOr<ChildProcess> start(const std::vector<std::string>& args,
                                            const Options& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // All of its standard output, up to the end. REQUIRES: capture_output; called once.
  std::string read_output();
  // Sends SIGTERM.
  void terminate() const;
  // Exit status, 128 + N after signal N. poll(): nullopt while it runs.
  int wait();
  std::optional<int> poll();

 private:
  ChildProcess(pid_t pid, int output) : pid_(pid), output_(output) {}
  std::optional<int> reap(int flags);

  pid_t pid_ = -1;  // -1: moved from
  int output_ = -1;
  std::optional<int> status_;
};

}  // namespace tandem
