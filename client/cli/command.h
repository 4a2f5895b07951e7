// What the commands of `tandem` have in common: where the server is, and how a run ends.
//
// Exit status: 0 fine, 1 the request failed, 2 wrong usage. Errors are one line on stderr.
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

inline constexpr int kFine = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

using Args = std::vector<std::string>;

// Each takes what follows its name on the command line.
int generate_command(const Args& args);
int models_command(const Args& args);
int tokenize_command(const Args& args);
int detokenize_command(const Args& args);
int score_command(const Args& args);
int health_command(const Args& args);
int chat_command(const Args& args);
int bench_command(const Args& args);
int compare_command(const Args& args);
int completion_command(const Args& args);
int version_command(const Args& args);

// Flags that every command with a server has.
struct Connection {
  std::optional<std::string> server;
  std::optional<std::string> ca, certificate, key;
  std::optional<std::string> traceparent;
  std::optional<double> timeout;
  bool help = false;

  void add_to(Flags* flags);
  absl::StatusOr<std::unique_ptr<Client>> connect() const;
};

// Names the model where none is named and the server has one. Else says what there is and returns
// the exit status to end with; kFine where `model` has a name now.
int name_model(Client& client, const char* command, std::string* model);

// --color. By themselves, colours come only where someone looks at them and not where they are
// asked away (NO_COLOR).
absl::StatusOr<bool> wants_colours(const std::optional<std::string>& when);

// To standard output, at once.
void write_out(const std::string& text);

// "text" or "json"; the error names the flag.
absl::StatusOr<bool> wants_json(const std::optional<std::string>& format);

// The contents of a file; "-" is standard input.
absl::StatusOr<std::string> read_input(const std::string& path);

// "1,2,3", with spaces or brackets allowed around and between.
absl::StatusOr<std::vector<int32_t>> parse_token_ids(const std::string& text);

// Prints and returns the exit status.
int wrong_usage(const char* command, const absl::Status& status);
int request_failed(const absl::Status& status);
int print_help(const std::string& intro, const Flags& flags);

}  // namespace tandem::cli
