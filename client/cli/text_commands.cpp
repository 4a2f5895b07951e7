// `tandem tokenize`, `tandem detokenize` and `tandem score`.
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/request_flags.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

constexpr char kTokenizeIntro[] =
    "tandem tokenize: text or chat messages to token ids.\n\n"
    "  tandem tokenize --model code --prompt 'def f():'\n";
constexpr char kDetokenizeIntro[] =
    "tandem detokenize: token ids to text.\n\n"
    "  tandem detokenize --model code --token-ids 318,257,64\n";
constexpr char kScoreIntro[] =
    "tandem score: log-probabilities of given text under the large model.\n\n"
    "  tandem score --model code --prompt 'import ' --continuation 'os'\n";

// What these commands share.
struct TextFlags {
  std::optional<std::string> model, prompt, prompt_file, token_ids, chat, format;
  Connection connection;
  Flags flags;

  void add_common() {
    flags.section("Request");
    flags.text("model", "NAME", "what to ask; default: the one that is served", &model);
    flags.text("format", "FORMAT", "text (default), json", &format);
  }
  void add_prompt() {
    flags.text("prompt", "TEXT", "a text", &prompt);
    flags.text("prompt-file", "FILE", "a text from a file; -: standard input", &prompt_file);
    flags.text("chat", "FILE", "chat messages, in JSON", &chat);
  }

  // Parses; a value is the exit status to end with at once.
  std::optional<int> parse(const char* command, const char* intro, const Args& args) {
    connection.add_to(&flags);
    const auto rest = flags.parse(args);
    if (!rest.ok()) return wrong_usage(command, rest.status());
    if (connection.help) return print_help(intro, flags);
    if (!rest->empty()) {
      return wrong_usage(command, out_of_range("argument", quote_value((*rest)[0]), "flags only"));
    }
    return std::nullopt;
  }

  // Puts the prompt that was given into a request with the usual oneof.
  template <class Request>
  absl::Status put_prompt(Request* request) const {
    if (prompt.has_value()) {
      request->set_text(*prompt);
    } else if (prompt_file.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(*request->mutable_text(), read_input(*prompt_file));
    } else if (chat.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string text, read_input(*chat));
      TANDEM_ASSIGN_OR_RETURN(*request->mutable_chat(), chat_from_json(text, *chat));
    } else {
      return out_of_range("prompt", "none", "one of --prompt, --prompt-file, --chat");
    }
    return absl::OkStatus();
  }
};

}  // namespace

int tokenize_command(const Args& args) {
  TextFlags f;
  bool special = true;
  f.add_common();
  f.add_prompt();
  f.flags.toggle("add-special-tokens", "as tokenizer.json says; default true", &special);
  if (const auto end = f.parse("tokenize", kTokenizeIntro, args)) return *end;
  const auto json = wants_json(f.format);
  if (!json.ok()) return wrong_usage("tokenize", json.status());
  v1::TokenizeRequest request;
  request.set_model(f.model.value_or(""));
  request.set_add_special_tokens(special);
  request.set_return_token_texts(true);
  if (const auto status = f.put_prompt(&request); !status.ok()) {
    return wrong_usage("tokenize", status);
  }
  const auto client = f.connection.connect();
  if (!client.ok()) return wrong_usage("tokenize", client.status());
  if (const int end = name_model(**client, "tokenize", request.mutable_model())) return end;
  const auto answer = (*client)->tokenize(request);
  if (!answer.ok()) return request_failed(answer.status());
  const std::string out = *json ? dump(to_json(*answer)) : absl::StrJoin(answer->token_ids(), ",");
  std::printf("%s\n", out.c_str());
  return kFine;
}

int detokenize_command(const Args& args) {
  TextFlags f;
  bool skip = true;
  f.add_common();
  f.flags.text("token-ids", "IDS", "1,2,3", &f.token_ids);
  f.flags.toggle("skip-special-tokens", "default true", &skip);
  if (const auto end = f.parse("detokenize", kDetokenizeIntro, args)) return *end;
  const auto json = wants_json(f.format);
  if (!json.ok()) return wrong_usage("detokenize", json.status());
  const auto ids = parse_token_ids(f.token_ids.value_or(""));
  if (!ids.ok()) return wrong_usage("detokenize", ids.status());
  v1::DetokenizeRequest request;
  request.set_model(f.model.value_or(""));
  request.set_skip_special_tokens(skip);
  *request.mutable_token_ids() = {ids->begin(), ids->end()};
  const auto client = f.connection.connect();
  if (!client.ok()) return wrong_usage("detokenize", client.status());
  if (const int end = name_model(**client, "detokenize", request.mutable_model())) return end;
  const auto answer = (*client)->detokenize(request);
  if (!answer.ok()) return request_failed(answer.status());
  std::printf("%s\n", *json ? dump(to_json(*answer)).c_str() : answer->text().c_str());
  return kFine;
}

int score_command(const Args& args) {
  TextFlags f;
  std::optional<std::string> continuation, continuation_ids;
  std::optional<double> top;
  bool score_prompt = false;
  f.add_common();
  f.add_prompt();
  f.flags.text("token-ids", "IDS", "the prompt as token ids", &f.token_ids);
  f.flags.text("continuation", "TEXT", "what is scored", &continuation);
  f.flags.text("continuation-token-ids", "IDS", "what is scored, as token ids", &continuation_ids);
  f.flags.toggle("score-prompt", "also score the prompt's own tokens", &score_prompt);
  f.flags.number("top-logprobs", "N", "the N best alternatives of each", 0, 20, &top);
  if (const auto end = f.parse("score", kScoreIntro, args)) return *end;
  const auto json = wants_json(f.format);
  if (!json.ok()) return wrong_usage("score", json.status());
  v1::ScoreRequest request;
  request.set_model(f.model.value_or(""));
  request.set_score_prompt(score_prompt);
  if (top.has_value()) request.set_top_logprobs(static_cast<int32_t>(*top));
  if (f.token_ids.has_value()) {
    const auto ids = parse_token_ids(*f.token_ids);
    if (!ids.ok()) return wrong_usage("score", ids.status());
    *request.mutable_token_ids()->mutable_ids() = {ids->begin(), ids->end()};
  } else if (const auto status = f.put_prompt(&request); !status.ok()) {
    return wrong_usage("score", status);
  }
  if (continuation.has_value()) request.set_continuation_text(*continuation);
  if (continuation_ids.has_value()) {
    const auto ids = parse_token_ids(*continuation_ids);
    if (!ids.ok()) return wrong_usage("score", ids.status());
    *request.mutable_continuation_token_ids()->mutable_ids() = {ids->begin(), ids->end()};
  }
  const auto client = f.connection.connect();
  if (!client.ok()) return wrong_usage("score", client.status());
  if (const int end = name_model(**client, "score", request.mutable_model())) return end;
  const auto answer = (*client)->score(request);
  if (!answer.ok()) return request_failed(answer.status());
  if (*json) {
    Json out;
    out["request_id"] = answer->request_id();
    out["prompt_tokens"] = Json::array();
    for (const auto& token : answer->prompt_tokens())
      out["prompt_tokens"].push_back(token_to_json(token));
    out["continuation_tokens"] = Json::array();
    for (const auto& token : answer->continuation_tokens()) {
      out["continuation_tokens"].push_back(token_to_json(token));
    }
    out["total_logprob"] = answer->total_logprob();
    out["usage"] = to_json(answer->usage());
    std::printf("%s\n", dump(out).c_str());
    return kFine;
  }
  const auto print = [](const v1::Token& token) {
    std::printf("%8d  %10s  %s\n", token.id(),
                token.has_logprob() ? absl::StrFormat("%.4f", token.logprob()).c_str() : "-",
                quote_value(token.text()).c_str());
  };
  for (const auto& token : answer->prompt_tokens()) print(token);
  for (const auto& token : answer->continuation_tokens()) print(token);
  std::printf("   total  %10.4f\n", answer->total_logprob());
  return kFine;
}

}  // namespace tandem::cli
