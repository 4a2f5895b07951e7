// `tandem generate`: streams a completion to the terminal, or prints it as one JSON object.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/answer.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/provenance.h"
#include "client/cli/request_flags.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kGenerateIntro[] =
    "tandem generate [PROMPT]: generates text and streams it as it is made.\n\n"
    "  tandem generate 'def fib(n):' --max-new-tokens 64\n"
    "  git diff | tandem generate --model chat --system 'Sum up this change.'\n"
    "  tandem generate --model code --prompt-file main.py --temperature 0.8 --seed 1\n"
    "  tandem generate --model code --method bild --set bild.rollback_threshold=0.69 --prompt x\n"
    "  tandem generate --model chat --chat messages.json --format json\n\n"
    "The model need not be named where one is served; without a prompt, standard input is it.\n"
    "Text goes to standard output, errors as STATUS: message to standard error.\n"
    "Exit status: 0 fine, 1 the request failed, 2 wrong usage.\n";

// Several choices, one after the other; `shown`: their texts.
std::string apart(const std::vector<std::string>& shown, bool colours) {
  std::string out = "\n";
  for (size_t i = 0; i < shown.size(); ++i) {
    const std::string title = absl::StrCat("[choice ", i, "]");
    absl::StrAppend(&out, colours ? absl::StrCat("\x1b[1m", title, "\x1b[0m") : title, "\n",
                    shown[i], "\n");
  }
  return out;
}

}  // namespace

int generate_command(const Args& args) {
  RequestFlags request_flags;
  Connection connection;
  std::optional<std::string> format, summary, color;
  bool echo = true;
  bool stats = false;
  Flags flags;
  request_flags.add_to(&flags);
  flags.section("Printing");
  flags.text("format", "FORMAT",
             "text (default): streamed; json: one object with text, token_ids,\n"
             "finish_reason, method, contract, usage, stats, tokens; with --n, choices",
             &format);
  flags.text("summary", "FILE", "also append that JSON object, as one line, to FILE", &summary);
  flags.toggle("echo", "print a text prompt before its completion; default true", &echo);
  flags.toggle("stats", "one line about the request on standard error", &stats);
  flags.text("color", "WHEN",
             "tokens in colours by what proposed them, a legend and --stats when several\n"
             "models did: always, never, auto (default: on a terminal, without NO_COLOR)",
             &color);
  connection.add_to(&flags);

  const auto rest = flags.parse(args);
  if (!rest.ok()) return wrong_usage("generate", rest.status());
  if (connection.help) return print_help(kGenerateIntro, flags);
  if (const auto status = request_flags.take_arguments(*rest); !status.ok()) {
    return wrong_usage("generate", status);
  }
  request_flags.reads_input = isatty(STDIN_FILENO) == 0;
  const auto json = wants_json(format);
  if (!json.ok()) return wrong_usage("generate", json.status());
  const auto colours = wants_colours(color);
  if (!colours.ok()) return wrong_usage("generate", colours.status());
  auto request = request_flags.request();
  if (!request.ok()) return wrong_usage("generate", request.status());
  const auto client = connection.connect();
  if (!client.ok()) return wrong_usage("generate", client.status());
  if (const int status = name_model(**client, "generate", request->mutable_model())) return status;

  const bool paints = *colours && !*json;
  if (paints && !request->has_return_token_texts()) request->set_return_token_texts(true);
  // The JSON object tells of every token.
  if ((*json || summary.has_value()) && !request->has_return_tokens()) {
    request->set_return_tokens(true);
  }
  const auto choices = static_cast<size_t>(std::clamp(request->n(), 1, 16));
  Answer result(static_cast<int>(choices));
  const bool several = choices > 1;
  std::vector<Painter> painters(choices);
  std::vector<std::string> shown(choices);  // where there are several
  const absl::Status status = (*client)->generate(*request, [&](const v1::GenerateResponse& event) {
    result.add(event);
    if (*json) return true;
    if (event.has_started() && echo && request->has_text()) {
      write_out(paints ? absl::StrCat("\x1b[2m", request->text(), "\x1b[0m") : request->text());
    }
    if (event.has_chunk()) {
      const auto i = static_cast<size_t>(event.chunk().index());
      if (i >= choices) return true;
      const std::string text = paints ? painters[i].paint(event.chunk()) : event.chunk().text();
      several ? void(shown[i] += text) : write_out(text);
    }
    return true;
  });
  if (!*json && (result.has_text() || status.ok()))
    write_out(several ? apart(shown, paints) : "\n");
  if (!status.ok()) return request_failed(status);
  if (*json) write_out(dump(result.json()) + "\n");
  const v1::Method method = result.started().method();
  const bool tandem = !method_figures(method, result.first().finished.stats()).empty();
  const std::string looks = legend(method, result.first().tokens, true);
  if (paints && tandem && !looks.empty()) std::fprintf(stderr, "%s\n", looks.c_str());
  if (stats || (paints && tandem)) std::fprintf(stderr, "%s\n", result.footer().c_str());
  if (summary.has_value()) {
    std::ofstream out(*summary, std::ios::app);
    out << dump(result.json()) << "\n";
    if (!out.flush()) {
      std::fprintf(stderr, "tandem generate: --summary: cannot write %s\n", summary->c_str());
      return kFailed;
    }
  }
  return kFine;
}

}  // namespace tandem::cli
