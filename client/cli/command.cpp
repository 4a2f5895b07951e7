#include "client/cli/command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void Connection::add_to(Flags* flags) {
  flags->section("Server");
  flags->text("server", "HOST:PORT", "default: $TANDEM_SERVER, else 127.0.0.1:50051", &server);
  flags->number("timeout", "SECONDS", "deadline of the call: DEADLINE_EXCEEDED", 0.001, 1e7,
                &timeout);
  flags->text("ca", "FILE", "PEM: use TLS and trust this authority", &ca);
  flags->text("cert", "FILE", "PEM: our certificate, with --key", &certificate);
  flags->text("key", "FILE", "PEM", &key);
  flags->text("traceparent", "CONTEXT", "W3C trace context for the server's logs", &traceparent);
  flags->toggle("help", "print this and exit", &help);
}

absl::StatusOr<std::unique_ptr<Client>> Connection::connect() const {
  ClientOptions options;
  if (const std::string named = from_environment("TANDEM_SERVER"); !named.empty()) {
    options.server = named;
  }
  if (server.has_value()) options.server = *server;
  // A token on the command line would be seen in the list of processes.
  options.token = from_environment("TANDEM_TOKEN");
  options.ca_file = ca.value_or("");
  options.certificate_file = certificate.value_or("");
  options.key_file = key.value_or("");
  options.traceparent = traceparent.value_or("");
  if (timeout.has_value()) {
    options.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*timeout));
  }
  return Client::connect(std::move(options));
}

int name_model(Client& client, const char* command, std::string* model) {
  if (!model->empty()) return kFine;
  const auto served = client.models();
  if (!served.ok()) return request_failed(served.status());
  if (served->models_size() != 1) {
    const std::string names =
        absl::StrJoin(served->models(), ", ", [](std::string* out, const v1::Model& one) {
          absl::StrAppend(out, quote_value(one.name()));
        });
    return wrong_usage(command,
                       out_of_range("--model", "none", names.empty() ? "none is served" : names));
  }
  *model = served->models(0).name();
  return kFine;
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

void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<bool> wants_json(const std::optional<std::string>& format) {
  if (!format.has_value() || *format == "text") return false;
  if (*format == "json") return true;
  return out_of_range("--format", quote_value(*format), "text, json");
}

absl::StatusOr<std::string> read_input(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read"));
  // An empty file sets the stream's fail bit here, which is no error.
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

int wrong_usage(const char* command, const absl::Status& status) {
  std::fprintf(stderr, "tandem %s: %s\nSee tandem %s --help.\n", command,
               std::string(status.message()).c_str(), command);
  return kUsage;
}

int request_failed(const absl::Status& status) {
  std::string line(status.message());
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  std::fprintf(stderr, "%s: %s\n", status_name(status.code()), line.c_str());
  return kFailed;
}

int print_help(const std::string& intro, const Flags& flags) {
  std::fputs(absl::StrCat(intro, flags.help()).c_str(), stdout);
  return kFine;
}

}  // namespace tandem::cli
