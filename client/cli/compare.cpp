// `tandem compare`: one prompt decoded by several methods, one after the other.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/comparison.h"
#include "client/cli/request_flags.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kCompareIntro[] =
    "tandem compare [PROMPT]: decodes one prompt by several methods, one after the other, and "
    "shows\n"
    "where the answers differ from the first and how long each took.\n\n"
    "  tandem compare 'def fib(n):' --max-new-tokens 64\n"
    "  tandem compare 'def fib(n):' --methods autoregressive,bild --set "
    "bild.rollback_threshold=0.69\n\n"
    "Parameters of a method (--set METHOD.FIELD=VALUE) go to that method alone. Sampling has a "
    "seed\n"
    "(--seed, else 0), so that methods whose contract is EXACT give the same tokens.\n"
    "Exit status: 0 fine, 1 a request failed, 2 wrong usage.\n";

// Those that the model offers, autoregressive decoding first: the others are compared with it.
absl::StatusOr<std::vector<std::string>> offered(Client* client, const std::string& model) {
  TANDEM_ASSIGN_OR_RETURN(const v1::Model described, client->model(model));
  std::vector<std::string> out = {"autoregressive"};
  for (const v1::OfferedMethod& one : described.methods()) {
    if (method_text(one.method()) != out.front()) out.push_back(method_text(one.method()));
  }
  return out;
}

// `flags` for one method: without the parameters of others, which would choose these.
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

void print(const Compared& one, const Compared& first, bool colours) {
  const std::vector<DiffPiece> pieces = diff(pieces_of(first.answer), pieces_of(one.answer));
  const auto others = std::count_if(pieces.begin(), pieces.end(), [](const DiffPiece& piece) {
    return piece.kind != DiffPiece::Kind::kSame;
  });
  const std::string title =
      &one == &first ? one.method
                     : absl::StrCat(one.method, ": ",
                                    others == 0 ? "the same, token for token"
                                                : absl::StrCat("differs in ", others, " places"));
  write_out(absl::StrCat(colours ? "\x1b[1m" : "== ", title, colours ? "\x1b[0m" : "", "\n"));
  if (&one == &first || others > 0) write_out(show(pieces, colours) + "\n");
  write_out("\n");
}

}  // namespace

int compare_command(const Args& args) {
  RequestFlags request_flags;
  Connection connection;
  std::optional<std::string> format, color, methods;
  Flags flags;
  flags.section("Comparison");
  flags.text("methods", "NAMES", "with commas; default: all that the model offers", &methods);
  flags.text("format", "FORMAT", "text (default), json", &format);
  flags.text("color", "WHEN", "always, never, auto (default: on a terminal, without NO_COLOR)",
             &color);
  request_flags.add_to(&flags);
  connection.add_to(&flags);
  const auto rest = flags.parse(args);
  if (!rest.ok()) return wrong_usage("compare", rest.status());
  if (connection.help) return print_help(kCompareIntro, flags);
  if (const auto status = request_flags.take_arguments(*rest); !status.ok()) {
    return wrong_usage("compare", status);
  }
  const auto json = wants_json(format);
  if (!json.ok()) return wrong_usage("compare", json.status());
  const auto colours = wants_colours(color);
  if (!colours.ok()) return wrong_usage("compare", colours.status());
  if (request_flags.method.has_value()) {
    return wrong_usage("compare", out_of_range("--method", *request_flags.method, "--methods"));
  }
  request_flags.reads_input = isatty(STDIN_FILENO) == 0;
  auto whole = request_flags.request();  // standard input can be read once
  if (!whole.ok()) return wrong_usage("compare", whole.status());
  const auto client = connection.connect();
  if (!client.ok()) return wrong_usage("compare", client.status());
  if (const int end = name_model(**client, "compare", whole->mutable_model())) return end;

  std::vector<std::string> names;
  if (methods.has_value()) {
    names = absl::StrSplit(*methods, ',', absl::SkipEmpty());
  } else {
    auto all = offered(client->get(), whole->model());
    if (!all.ok()) return request_failed(all.status());
    names = *std::move(all);
  }

  std::vector<Compared> done;
  for (const std::string& name : names) {
    auto request = flags_for(name, request_flags).request_without_prompt();
    if (!request.ok()) return wrong_usage("compare", request.status());
    request->set_model(whole->model());
    put_prompt_of(*whole, &*request);
    request->set_n(1);
    request->set_return_token_texts(true);
    request->set_return_tokens(true);
    if (!request->has_seed()) request->set_seed(0);
    Compared one{name, Answer()};
    const absl::Status ended =
        (*client)->generate(*request, [&one](const v1::GenerateResponse& event) {
          one.answer.add(event);
          return true;
        });
    if (!ended.ok()) return request_failed(annotate(ended, name));
    done.push_back(std::move(one));
    if (!*json) print(done.back(), done.front(), *colours);
  }
  if (done.empty()) {
    return wrong_usage("compare", out_of_range("--methods", "none", "names with commas"));
  }
  write_out(*json ? dump(comparison_json(done)) + "\n" : comparison_table(done));
  return kFine;
}

}  // namespace tandem::cli
