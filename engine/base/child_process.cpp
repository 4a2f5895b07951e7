#include "engine/base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"

namespace tandem {
namespace {

void close_if_open(int fd) {
  if (fd >= 0) ::close(fd);
}

// A pipe whose ends are closed in programs that this process starts.
struct Pipe {
  int read = -1;
  int write = -1;
  bool open() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  ~Pipe() {
    close_if_open(read);
    close_if_open(write);
  }
};

std::string read_all(int fd) {
  std::string all;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return all;
    all.append(buffer.data(), static_cast<size_t>(n));
  }
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const auto& [name, value] : added) {
      replaced |= absl::StartsWith(*entry, absl::StrCat(name, "="));
    }
    if (!replaced) all.emplace_back(*entry);
  }
  for (const auto& [name, value] : added) all.push_back(absl::StrCat(name, "=", value));
  return all;
}

// In the child, between fork and exec: only system calls.
[[noreturn]] void become(char* const* args, char* const* environment, int output, int error,
                         bool own_group, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // it ended before the call above
  if (own_group) ::setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
  if (output >= 0) ::dup2(output, STDOUT_FILENO);
  ::execvpe(args[0], args, environment);
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = ::write(error, &reason, sizeof(reason));
  ::_exit(127);
}

}  // namespace

std::string sibling_program(absl::string_view name) {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length > 0) {
    std::string own(path.data(), static_cast<size_t>(length));
    own.erase(own.rfind('/') + 1);
    absl::StrAppend(&own, name);
    if (::access(own.c_str(), X_OK) == 0) return own;
  }
  return std::string(name);
}

absl::StatusOr<ChildProcess> ChildProcess::start(const std::vector<std::string>& args,
                                                 const Options& options) {
  std::vector<std::string> texts = args;
  std::vector<std::string> variables = environment_with(options.environment);
  const std::vector<char*> argv = pointers_to(texts);
  const std::vector<char*> environment = pointers_to(variables);
  Pipe output, failure;
  if (!failure.open() || (options.capture_output && !output.open())) {
    return absl::UnavailableError(absl::StrCat(args[0], ": no pipe: ", std::strerror(errno)));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return absl::UnavailableError(absl::StrCat(args[0], ": cannot start: ", std::strerror(errno)));
  }
  if (pid == 0) {
    become(argv.data(), environment.data(), output.write, failure.write, options.own_group, parent);
  }
  ChildProcess child(pid, std::exchange(output.read, -1));
  close_if_open(std::exchange(failure.write, -1));
  // The end of the pipe without bytes: exec succeeded.
  const std::string reason = read_all(failure.read);
  if (reason.size() < sizeof(int)) return child;
  int error = 0;
  std::memcpy(&error, reason.data(), sizeof(error));
  const std::string message =
      absl::StrCat(quote_value(args[0]), ": cannot start: ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  return absl::UnavailableError(message);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      status_(other.status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  std::swap(status_, other.status_);
  return *this;
}

ChildProcess::~ChildProcess() {
  close_if_open(output_);
  if (pid_ < 0 || poll().has_value()) return;
  terminate();
  wait();
}

std::string ChildProcess::read_output() {
  std::string all = read_all(output_);
  close_if_open(std::exchange(output_, -1));
  return all;
}

void ChildProcess::terminate() const {
  if (pid_ > 0 && !status_.has_value()) ::kill(pid_, SIGTERM);
}

std::optional<int> ChildProcess::reap(int flags) {
  while (!status_.has_value() && pid_ > 0) {
    int status = 0;
    const pid_t found = ::waitpid(pid_, &status, flags);
    if (found < 0 && errno == EINTR) continue;
    if (found == 0) return std::nullopt;
    status_ = found < 0 ? 127 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return status_;
}

int ChildProcess::wait() { return reap(0).value_or(127); }

std::optional<int> ChildProcess::poll() { return reap(WNOHANG); }

}  // namespace tandem
