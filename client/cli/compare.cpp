// `tandem compare`: one prompt decoded by several methods, one after the other.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/comparison.h"
#include "client/cli/pass_trace.h"
#include "client/cli/request_flags.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kCompareIntro[] =
    "tandem compare: decodes one prompt with several methods, one after the other.\n"
    "Shows where each output differs from the first, and how long each method took.\n\n"
    "Usage: tandem compare [PROMPT] [flags]\n\n"
    "  tandem compare 'def fib(n):' --max-new-tokens 64\n"
    "  tandem compare 'def fib(n):' --methods autoregressive,bild \\\n"
    "      --set bild.rollback_threshold=0.69\n\n"
    "--set METHOD.FIELD=VALUE applies to that method only. Sampling uses --seed (default 0), so\n"
    "methods with the EXACT contract produce the same tokens. A method that fails is shown with\n"
    "its error; the others still run.\n\n"
    "--trace writes the passes of every method as a time line for chrome://tracing or Perfetto.\n\n"
    "Exit status: 0 success, 1 a request failed, 2 wrong usage.\n";

// The methods that the model offers, autoregressive decoding first: the baseline.
absl::StatusOr<std::vector<std::string>> offered(Client& client, const std::string& model) {
  TANDEM_ASSIGN_OR_RETURN(const v1::Model described, from_server(client.model(model)));
  std::vector<std::string> out = {"autoregressive"};
  for (const v1::OfferedMethod& one : described.methods()) {
    if (method_text(one.method()) != out.front()) out.push_back(method_text(one.method()));
  }
  return out;
}

// `flags` for one method. A parameter of another method would select that method.
RequestFlags flags_for(const std::string& method, const RequestFlags& flags) {
  RequestFlags out = flags;
  out.method = method;
  out.sets.clear();
  const std::vector<std::string> all = method_names();
  for (const std::string& set : flags.sets) {
    const std::string of = set.substr(0, set.find_first_of(".="));
    const bool of_a_method = std::find(all.begin(), all.end(), of) != all.end();
    if (!of_a_method || of == method) out.sets.push_back(set);
  }
  return out;
}

void put_prompt_of(const v1::GenerateRequest& from, v1::GenerateRequest* to) {
  if (from.has_text()) to->set_text(from.text());
  if (from.has_token_ids()) *to->mutable_token_ids() = from.token_ids();
  if (from.has_chat()) *to->mutable_chat() = from.chat();
}

void print(const Compared& one, const Compared* baseline, bool colours) {
  const auto title = [&](const std::string& text) {
    write_out(absl::StrCat(colours ? "\x1b[1m" : "== ", text, colours ? "\x1b[0m" : "", "\n"));
  };
  if (!one.status.ok()) {
    return title(absl::StrCat(one.method, ": ", status_name(one.status.code()), ": ",
                              one.status.message(), "\n"));
  }
  const std::vector<DiffPiece> pieces = diff(pieces_of(baseline->answer), pieces_of(one.answer));
  const auto others = std::count_if(pieces.begin(), pieces.end(), [](const DiffPiece& piece) {
    return piece.kind != DiffPiece::Kind::kSame;
  });
  const bool is_baseline = &one == baseline;
  title(is_baseline ? one.method
                    : absl::StrCat(one.method, ": ",
                                   others == 0 ? "the same, token for token"
                                               : absl::StrCat("differs in ", others, " places")));
  if (is_baseline || others > 0) write_out(show(pieces, colours) + "\n");
  write_out("\n");
}

// The requests, one for each method. Wrong usage is found before the first one is sent.
absl::StatusOr<std::vector<v1::GenerateRequest>> requests_of(
    const std::vector<std::string>& methods, const RequestFlags& flags,
    const v1::GenerateRequest& prompt, bool trace) {
  std::vector<v1::GenerateRequest> out;
  for (const std::string& method : methods) {
    TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                            flags_for(method, flags).request_without_prompt());
    request.set_model(prompt.model());
    put_prompt_of(prompt, &request);
    request.set_n(1);
    request.set_return_token_texts(true);
    request.set_return_tokens(true);
    if (trace) request.set_trace(true);
    if (!request.has_seed()) request.set_seed(0);
    out.push_back(std::move(request));
  }
  return out;
}

bool save_trace(const std::string& path, const std::vector<Compared>& done) {
  std::ofstream out(path, std::ios::binary);
  out << dump(chrome_trace(done)) << "\n";
  if (out.flush()) return true;
  std::fprintf(stderr, "tandem compare: --trace: cannot write %s\n", path.c_str());
  return false;
}

absl::StatusOr<int> run_compare(CommandLine& line) {
  RequestFlags request_flags;
  std::optional<std::string> methods, trace;
  line.flags.section("Comparison");
  line.flags.text("methods", "NAMES", "methods, as in bild,ngram (default all that are offered)",
                  &methods);
  line.flags.text("trace", "FILE", "write the passes in Chrome's trace format", &trace);
  line.add_format();
  line.add_color("color the differences: auto, always, never (default auto)");
  request_flags.add_to(&line.flags);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse(CommandLine::kAnyNumber));
  if (!go) return kSuccess;
  TANDEM_RETURN_IF_ERROR(request_flags.take_arguments(line.arguments()));
  if (request_flags.method.has_value()) {
    return out_of_range("--method", *request_flags.method, "--methods");
  }
  request_flags.reads_input = isatty(STDIN_FILENO) == 0;
  TANDEM_ASSIGN_OR_RETURN(v1::GenerateRequest prompt, request_flags.request());
  TANDEM_RETURN_IF_ERROR(line.connect(prompt.mutable_model()));
  std::vector<std::string> names;
  if (methods.has_value()) {
    names = absl::StrSplit(*methods, ',', absl::SkipEmpty());
  } else {
    TANDEM_ASSIGN_OR_RETURN(names, offered(line.client(), prompt.model()));
  }
  if (names.empty()) return out_of_range("--methods", "none", "names with commas");
  TANDEM_ASSIGN_OR_RETURN(const auto requests,
                          requests_of(names, request_flags, prompt, trace.has_value()));

  std::vector<Compared> done;
  done.reserve(names.size());  // `baseline` points into it
  const Compared* baseline = nullptr;
  bool failed = false;
  for (size_t i = 0; i < names.size(); ++i) {
    Compared& one = done.emplace_back(Compared{names[i], Answer(), absl::OkStatus()});
    one.status = line.client().generate(requests[i], [&one](const v1::GenerateResponse& event) {
      one.answer.add(event);
      return true;
    });
    failed = failed || !one.status.ok();
    if (one.status.ok() && baseline == nullptr) baseline = &one;
    if (!line.json()) print(one, baseline, line.colours());
    if (!one.status.ok()) request_failed(annotate(one.status, one.method));
  }
  write_out(line.json() ? dump(comparison_json(done)) + "\n" : comparison_table(done));
  if (trace.has_value() && !save_trace(*trace, done)) failed = true;
  return failed ? kFailed : kSuccess;
}

}  // namespace

Command compare_command() {
  return {"compare", "decode one prompt with several methods", kCompareIntro, run_compare};
}

}  // namespace tandem::cli
