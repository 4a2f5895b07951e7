#include "client/cli/command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/terminal_text.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kFromServer[] = "tandem.cli/from_server";  // a status payload

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<bool> wants_json(const std::optional<std::string>& format) {
  if (!format.has_value() || *format == "text") return false;
  if (*format == "json") return true;
  return out_of_range("--format", quote_value(*format), "text, json");
}

absl::StatusOr<bool> wants_colours(const std::optional<std::string>& when) {
  if (when == "always") return true;
  if (when == "never") return false;
  if (when.has_value() && when != "auto") {
    return out_of_range("--color", quote_value(*when), "auto, always, never");
  }
  const std::string term = from_environment("TERM");
  return isatty(STDOUT_FILENO) == 1 && from_environment("NO_COLOR").empty() && term != "dumb";
}

}  // namespace

int run_command(const Command& command, const Args& args) {
  CommandLine line(command, args);
  const absl::StatusOr<int> status = command.run(line);
  if (status.ok()) return *status;
  if (status.status().GetPayload(kFromServer).has_value()) return request_failed(status.status());
  std::fprintf(stderr, "tandem %s: %s\nSee tandem %s --help.\n", command.name,
               std::string(status.status().message()).c_str(), command.name);
  return kUsage;
}

absl::Status from_server(const absl::Status& status) {
  absl::Status marked = status;
  marked.SetPayload(kFromServer, absl::Cord());  // does nothing to OK
  return marked;
}

void CommandLine::add_format(const char* help) { flags.text("format", "FORMAT", help, &format_); }

void CommandLine::add_color(const char* help) { flags.text("color", "WHEN", help, &color_); }

absl::StatusOr<bool> CommandLine::parse(size_t max_arguments, bool offline) {
  if (!offline) {
    flags.section("Connection");
    flags.text("server", "HOST:PORT", "server address (default $TANDEM_SERVER or 127.0.0.1:50051)",
               &server_);
    flags.number("timeout", "SECONDS", "deadline of each call (default none)", 0.001, 1e7,
                 &timeout_);
    flags.text("ca", "FILE", "use TLS and trust this certificate authority (PEM)", &ca_);
    flags.text("cert", "FILE", "client certificate (PEM); needs --key", &certificate_);
    flags.text("key", "FILE", "private key of --cert (PEM)", &key_);
    flags.text("traceparent", "CONTEXT", "W3C trace context of the calls", &traceparent_);
  } else {
    flags.section("Help");
  }
  flags.toggle("help", "print this help and exit", &help_);
  TANDEM_ASSIGN_OR_RETURN(arguments_, flags.parse(args_));
  if (help_) {
    std::fputs(absl::StrCat(command_.intro, flags.help()).c_str(), stdout);
    return false;
  }
  if (arguments_.size() > max_arguments) {
    return out_of_range("argument", quote_value(arguments_[max_arguments]),
                        max_arguments == 0   ? "flags only"
                        : max_arguments == 1 ? "one argument"
                                             : absl::StrCat(max_arguments, " arguments"));
  }
  TANDEM_ASSIGN_OR_RETURN(json_, wants_json(format_));
  TANDEM_ASSIGN_OR_RETURN(colours_, wants_colours(color_));
  return true;
}

ClientOptions CommandLine::client_options() const {
  ClientOptions options;
  if (const std::string address = from_environment("TANDEM_SERVER"); !address.empty()) {
    options.server = address;
  }
  if (server_.has_value()) options.server = *server_;
  // Not a flag: the process list would show the token.
  options.token = from_environment("TANDEM_TOKEN");
  options.ca_file = ca_.value_or("");
  options.certificate_file = certificate_.value_or("");
  options.key_file = key_.value_or("");
  options.traceparent = traceparent_.value_or("");
  if (timeout_.has_value()) {
    options.timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*timeout_));
  }
  return options;
}

absl::Status CommandLine::connect(std::string* model) {
  TANDEM_ASSIGN_OR_RETURN(client_, Client::connect(client_options()));
  if (model == nullptr || !model->empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const v1::ListModelsResponse served, from_server(client_->models()));
  if (served.models_size() == 1) {
    *model = served.models(0).name();
    return absl::OkStatus();
  }
  const std::string names =
      absl::StrJoin(served.models(), ", ", [](std::string* out, const v1::Model& one) {
        absl::StrAppend(out, quote_value(one.name()));
      });
  return out_of_range("--model", "none", names.empty() ? "the server has no models" : names);
}

void write_out(const std::string& text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  const std::string safe = terminal ? terminal_text(text) : text;
  std::fwrite(safe.data(), 1, safe.size(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<std::string> read_input(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read"));
  // Inserting an empty file sets the fail bit of `text`, which is not an error.
  text << in.rdbuf();
  if (in.bad()) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read"));
  return text.str();
}

absl::StatusOr<std::vector<int32_t>> parse_token_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(", []\n\t"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return out_of_range("--token-ids", quote_value(word), "integers as in 1,2,3");
    }
    ids.push_back(id);
  }
  return ids;
}

int request_failed(const absl::Status& status) {
  std::string line = terminal_text(status.message());
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  std::fprintf(stderr, "%s: %s\n", status_name(status.code()), line.c_str());
  return kFailed;
}

}  // namespace tandem::cli
