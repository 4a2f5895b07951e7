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
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/provenance.h"
#include "client/cli/request_flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kIntro[] =
    "tandem generate: generates text and streams it as it is made.\n\n"
    "  tandem generate --model code --prompt 'def fib(n):' --max-new-tokens 64\n"
    "  tandem generate --model code --prompt-file main.py --temperature 0.8 --seed 1\n"
    "  tandem generate --model code --method bild --set bild.rollback_threshold=0.69 --prompt x\n"
    "  tandem generate --model chat --chat messages.json --format json\n\n"
    "Text goes to standard output, errors as STATUS: message to standard error.\n"
    "Exit status: 0 fine, 1 the request failed, 2 wrong usage.\n";

// By themselves, colours come only where someone looks at them and not where they are asked away.
absl::StatusOr<bool> wants_colours(const std::optional<std::string>& when) {
  if (when == "always") return true;
  if (when == "never") return false;
  if (when.has_value() && when != "auto") {
    return out_of_range("--color", quote_value(*when), "auto, always, never");
  }
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string(term) != "dumb");
}

// What the messages of a stream add up to.
struct Choice {
  std::string text;
  std::vector<v1::Token> tokens;
  v1::Finished finished;

  void put_in(Json* out) const {
    (*out)["text"] = text;
    (*out)["token_ids"] = Json::array();
    for (const v1::Token& token : tokens) (*out)["token_ids"].push_back(token.id());
    (*out)["finish_reason"] = finish_reason_text(finished.finish_reason());
    if (!finished.stop_sequence().empty()) (*out)["stop_sequence"] = finished.stop_sequence();
    (*out)["usage"] = to_json(finished.usage());
    (*out)["stats"] = to_json(finished.stats());
    (*out)["tokens"] = Json::array();
    for (const v1::Token& token : tokens) (*out)["tokens"].push_back(token_to_json(token));
  }
};

struct Result {
  explicit Result(int n) : choices(static_cast<size_t>(n)) {}

  v1::Started started;
  std::vector<Choice> choices;

  void add(const v1::GenerateResponse& event) {
    if (event.has_started()) started = event.started();
    if (event.has_finished()) at(event.finished().index()).finished = event.finished();
    if (event.has_chunk()) {
      Choice& choice = at(event.chunk().index());
      choice.text += event.chunk().text();
      choice.tokens.insert(choice.tokens.end(), event.chunk().tokens().begin(),
                           event.chunk().tokens().end());
    }
  }

  // One choice: one flat object. Several: what they share, and `choices`.
  Json json() const {
    Json out;
    if (choices.size() == 1) choices[0].put_in(&out);
    out["method"] = method_text(started.method());
    out["contract"] = contract_text(started.contract());
    out["request_id"] = started.request_id();
    out["seed"] = choices[0].finished.seed();
    for (size_t i = 0; choices.size() > 1 && i < choices.size(); ++i) {
      Json choice;
      choice["index"] = i;
      choices[i].put_in(&choice);
      out["choices"].push_back(std::move(choice));
    }
    return out;
  }

 private:
  Choice& at(int index) {
    const auto i = static_cast<size_t>(index);
    if (i >= choices.size()) choices.resize(i + 1);
    return choices[i];
  }
};

void write_out(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// One line for a person: what was done and how fast.
std::string footer(const Result& result) {
  const v1::Finished& first = result.choices[0].finished;
  const v1::MethodStats& stats = first.stats();
  int tokens = 0;
  double rate = 0;
  for (const Choice& choice : result.choices) {
    const int n = choice.finished.usage().completion_tokens();
    tokens += n;
    // No rate for what came in one piece.
    const double seconds = choice.finished.stats().decode_seconds();
    if (n > 1 && seconds > 1e-3) rate += (n - 1) / seconds;
  }
  std::string out = absl::StrFormat(
      "[%s, %s, %s: %d tokens in ", finish_reason_text(first.finish_reason()),
      method_text(result.started.method()), contract_text(result.started.contract()), tokens);
  if (const std::string figures = method_figures(stats);
      figures.empty() || result.choices.size() > 1) {
    int passes = 0;
    for (const Choice& choice : result.choices) {
      passes += choice.finished.stats().large_passes() + choice.finished.stats().small_passes();
    }
    absl::StrAppendFormat(&out, "%d passes", passes);
  } else {
    absl::StrAppendFormat(&out, "%d large and %d small passes, %.2f a large pass; %s",
                          stats.large_passes(), stats.small_passes(), stats.tokens_per_pass(),
                          figures);
  }
  absl::StrAppendFormat(&out, "; first after %.3f s", stats.time_to_first_token_seconds());
  if (rate > 0) absl::StrAppendFormat(&out, ", then %.1f/s", rate);
  return out + "]";
}

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
  if (connection.help) return print_help(kIntro, flags);
  if (!rest->empty()) {
    return wrong_usage("generate", out_of_range("argument", quote_value((*rest)[0]),
                                                "flags only (a prompt goes after --prompt)"));
  }
  const auto json = wants_json(format);
  if (!json.ok()) return wrong_usage("generate", json.status());
  const auto colours = wants_colours(color);
  if (!colours.ok()) return wrong_usage("generate", colours.status());
  auto request = request_flags.request();
  if (!request.ok()) return wrong_usage("generate", request.status());
  const auto client = connection.connect();
  if (!client.ok()) return wrong_usage("generate", client.status());

  const bool paints = *colours && !*json;
  if (paints && !request->has_return_token_texts()) request->set_return_token_texts(true);
  // The JSON object tells of every token.
  if ((*json || summary.has_value()) && !request->has_return_tokens()) {
    request->set_return_tokens(true);
  }
  const auto choices = static_cast<size_t>(std::clamp(request->n(), 1, 16));
  Result result(static_cast<int>(choices));
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
  const bool any = std::any_of(result.choices.begin(), result.choices.end(),
                               [](const Choice& c) { return !c.text.empty(); });
  if (!*json && (any || status.ok())) write_out(several ? apart(shown, paints) : "\n");
  if (!status.ok()) return request_failed(status);
  if (*json) write_out(dump(result.json()) + "\n");
  const bool tandem = !method_figures(result.choices[0].finished.stats()).empty();
  if (paints && tandem) {
    std::fprintf(stderr, "%s\n", legend(result.choices[0].tokens, true).c_str());
  }
  if (stats || (paints && tandem)) std::fprintf(stderr, "%s\n", footer(result).c_str());
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
