// The commands of `tandem`, and the steps that they share: flags, help, connection, exit status.
//
// Exit status: 0 success, 1 the request failed, 2 wrong usage. Errors are one line on stderr.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "engine/base/flags.h"

namespace tandem::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

using Args = std::vector<std::string>;

class CommandLine;

struct Command {
  const char* name;
  const char* summary;
  const char* intro;  // what --help prints before the flags
  // Returns the exit status. An error is wrong usage, unless from_server() marks it.
  absl::StatusOr<int> (*run)(CommandLine& line);
};

Command generate_command();
Command chat_command();
Command compare_command();
Command bench_command();
Command models_command();
Command adapters_command();
Command deployments_command();
Command tokenize_command();
Command detokenize_command();
Command score_command();
Command health_command();
Command pull_command();
Command serve_and_chat_command();
Command completion_command();
Command version_command();

// Runs a command with the arguments that follow its name; prints its error. Returns the exit
// status.
int run_command(const Command& command, const Args& args);

// Marks an error as the server's: exit status 1, printed as "STATUS: message".
absl::Status from_server(const absl::Status& status);
template <class T>
absl::StatusOr<T> from_server(absl::StatusOr<T> result) {
  if (!result.ok()) return from_server(result.status());
  return result;
}

// The flags of one command, and its run up to the first request.
class CommandLine {
 public:
  CommandLine(const Command& command, const Args& args) : command_(command), args_(args) {}

  // The command's own flags. REQUIRES: parse() has not been called.
  Flags flags;
  void add_format(const char* help = "output: text or json (default text)");
  void add_color(const char* help);

  // Adds the flags of the connection (unless `offline`) and --help, and parses. False: the help was
  // printed, and the command ends with kSuccess.
  absl::StatusOr<bool> parse(size_t max_arguments = 0, bool offline = false);
  static constexpr size_t kAnyNumber = ~size_t{0};

  const Args& arguments() const { return arguments_; }  // neither flags nor their values
  bool json() const { return json_; }                   // --format
  bool colours() const { return colours_; }             // --color

  // Connects. If `model` is given and empty, it becomes the name of the only model served.
  absl::Status connect(std::string* model = nullptr);
  // Before connect(): the address, in place of --server and the environment.
  void set_server(std::string address) { server_ = std::move(address); }
  Client& client() const { return *client_; }  // REQUIRES: connect() is OK

 private:
  ClientOptions client_options() const;

  const Command& command_;
  const Args& args_;
  Args arguments_;
  std::optional<std::string> server_, ca_, certificate_, key_, traceparent_, format_, color_;
  std::optional<double> timeout_;
  bool help_ = false;
  bool json_ = false;
  bool colours_ = false;
  std::unique_ptr<Client> client_;
};

// Writes to standard output and flushes it. On a terminal, control characters are replaced
// (terminal_text()).
void write_out(const std::string& text);

// The contents of a file; "-" is standard input.
absl::StatusOr<std::string> read_input(const std::string& path);

// "1,2,3", with optional spaces and brackets.
absl::StatusOr<std::vector<int32_t>> parse_token_ids(const std::string& text);

// Prints "STATUS: message" to stderr and returns kFailed.
int request_failed(const absl::Status& status);

}  // namespace tandem::cli
