// `tandem generate`: streams a completion to the terminal, or prints it as one JSON object.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
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
    "tandem generate: generates text and prints it as it arrives.\n\n"
    "Usage: tandem generate [PROMPT] [flags]\n\n"
    "  tandem generate 'def fib(n):' --max-new-tokens 64\n"
    "  git diff | tandem generate --system 'Summarize this change.'\n"
    "  tandem generate --model code --prompt-file main.py --temperature 0.8 --seed 1\n"
    "  tandem generate 'def fib(n):' --method bild --set bild.rollback_threshold=0.69\n"
    "  tandem generate --chat messages.json --format json\n"
    "  tandem generate 'A user as JSON:' --json-schema user.schema.json\n\n"
    "Without a prompt, standard input is the prompt. If the server has one model, --model is\n"
    "optional. Text goes to standard output, errors go to standard error.\n\n"
    "Exit status: 0 success, 1 the request failed, 2 wrong usage.\n";

// Several choices, one after the other.
std::string titled_choices(const std::vector<std::string>& texts, bool colours) {
  std::string out = "\n";
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string title = absl::StrCat("[choice ", i, "]");
    absl::StrAppend(&out, colours ? absl::StrCat("\x1b[1m", title, "\x1b[0m") : title, "\n",
                    texts[i], "\n");
  }
  return out;
}

// Prints a stream as it arrives; several choices are printed at the end.
class StreamPrinter {
 public:
  StreamPrinter(const v1::GenerateRequest& request, bool echo, bool colours)
      : request_(request),
        echo_(echo && request.has_text()),
        colours_(colours),
        painters_(choices(request)),
        texts_(choices(request)) {}

  static size_t choices(const v1::GenerateRequest& request) {
    return static_cast<size_t>(std::clamp(request.n(), 1, 16));
  }

  void print(const v1::GenerateResponse& event) {
    if (event.has_started() && echo_) {
      write_out(colours_ ? absl::StrCat("\x1b[2m", request_.text(), "\x1b[0m") : request_.text());
    }
    if (!event.has_chunk()) return;
    const auto i = static_cast<size_t>(event.chunk().index());
    if (i >= texts_.size()) return;
    const std::string text = colours_ ? painters_[i].paint(event.chunk()) : event.chunk().text();
    if (texts_.size() > 1) {
      texts_[i] += text;
    } else {
      side_.print(event.chunk());
      write_out(text);
    }
  }
  void end() {
    side_.end();
    write_out(texts_.size() > 1 ? titled_choices(texts_, colours_) : "\n");
  }

 private:
  const v1::GenerateRequest& request_;
  const bool echo_, colours_;
  std::vector<Painter> painters_;
  std::vector<std::string> texts_;
  SidePrinter side_;
};

// The legend of the colours, and the statistics. Plain decoding gets neither, unless `stats`.
void print_footer(const Answer& answer, bool stats, bool colours) {
  const v1::Method method = answer.started().method();
  const bool two_models = !method_figures(method, answer.first().finished.stats()).empty();
  const std::string colour_legend = legend(method, answer.first().tokens, true);
  if (colours && two_models && !colour_legend.empty()) {
    std::fprintf(stderr, "%s\n", colour_legend.c_str());
  }
  if (stats || (colours && two_models)) std::fprintf(stderr, "%s\n", answer.footer().c_str());
}

absl::StatusOr<int> run_generate(CommandLine& line) {
  RequestFlags request_flags;
  std::optional<std::string> summary;
  bool echo = true;
  bool stats = false;
  request_flags.add_to(&line.flags);
  line.flags.section("Output");
  line.add_format("text: streamed (default); json: one object with text, tokens and stats");
  line.flags.text("summary", "FILE", "append that JSON object to FILE, on one line", &summary);
  line.flags.toggle("echo", "print a text prompt before its completion (default true)", &echo);
  line.flags.toggle("stats", "print one line of statistics to standard error", &stats);
  line.add_color(
      "color tokens by the model that proposed them: auto, always, never (default auto)");
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(CommandLine::kAnyNumber));
  if (!go) return kSuccess;
  TANDEM_RETURN_IF_ERROR(request_flags.take_arguments(line.arguments()));
  request_flags.reads_input = isatty(STDIN_FILENO) == 0;
  TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest request, request_flags.request());
  TANDEM_RETURN_IF_ERROR(line.connect(request.mutable_model()));

  const bool json = line.json();
  const bool colours = line.colours() && !json;
  if (colours && !request.has_return_token_texts()) request.set_return_token_texts(true);
  // Colors follow the tokens, which include those of reasoning and calls.
  if (colours && !request.has_raw_text()) request.set_raw_text(true);
  // The JSON object lists every token.
  if ((json || summary.has_value()) && !request.has_return_tokens()) {
    request.set_return_tokens(true);
  }
  Answer answer(static_cast<int>(StreamPrinter::choices(request)));
  StreamPrinter printer(request, echo, colours);
  const absl::Status status =
      line.client().generate(request, [&](const v1::GenerateResponse& event) {
        answer.add(event);
        if (!json) printer.print(event);
        return true;
      });
  if (!json && (answer.has_text() || status.ok())) printer.end();
  TANDEM_RETURN_IF_ERROR(from_server(status));
  if (json) write_out(dump(answer.json()) + "\n");
  print_footer(answer, stats, colours);
  if (summary.has_value()) {
    std::ofstream out(*summary, std::ios::app);
    out << dump(answer.json()) << "\n";
    if (!out.flush()) {
      std::fprintf(stderr, "tandem generate: --summary: cannot write %s\n", summary->c_str());
      return kFailed;
    }
  }
  return kSuccess;
}

}  // namespace

Command generate_command() {
  return {"generate", "generate text and print it as it arrives", kGenerateIntro, run_generate};
}

}  // namespace tandem::cli
