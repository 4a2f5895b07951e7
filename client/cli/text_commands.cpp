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
    "tandem tokenize: converts text or chat messages to token ids.\n\n"
    "Usage: tandem tokenize [flags]\n\n"
    "  tandem tokenize --prompt 'def f():'\n";
constexpr char kDetokenizeIntro[] =
    "tandem detokenize: converts token ids to text.\n\n"
    "Usage: tandem detokenize --token-ids IDS [flags]\n\n"
    "  tandem detokenize --token-ids 318,257,64\n";
constexpr char kScoreIntro[] =
    "tandem score: prints the log-probabilities that the large model assigns to a given text.\n\n"
    "Usage: tandem score --prompt TEXT --continuation TEXT [flags]\n\n"
    "  tandem score --prompt 'import ' --continuation 'os'\n";

// Flags that these commands share.
struct TextFlags {
  std::optional<std::string> model, prompt, prompt_file, token_ids, chat;

  void add_to(CommandLine* line) {
    line->flags.section("Request");
    line->flags.text("model", "NAME", "model (default the only model of the server)", &model);
    line->add_format();
  }
  void add_prompt_to(Flags* flags) {
    flags->text("prompt", "TEXT", "text", &prompt);
    flags->text("prompt-file", "FILE", "text from a file; -: standard input", &prompt_file);
    flags->text("chat", "FILE", "chat messages as JSON, from a file; -: standard input", &chat);
  }

  // Sets the prompt of a request with the oneof of GenerateRequest.
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

absl::StatusOr<int> run_tokenize(CommandLine& line) {
  TextFlags text;
  bool special = true;
  text.add_to(&line);
  text.add_prompt_to(&line.flags);
  line.flags.toggle("add-special-tokens", "add the tokenizer's special tokens (default true)",
                    &special);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse());
  if (!go) return kSuccess;
  v1::TokenizeRequest request;
  request.set_model(text.model.value_or(""));
  request.set_add_special_tokens(special);
  request.set_return_token_texts(true);
  TANDEM_RETURN_IF_ERROR(text.put_prompt(&request));
  TANDEM_RETURN_IF_ERROR(line.connect(request.mutable_model()));
  TANDEM_ASSIGN_OR_RETURN(const auto response, from_server(line.client().tokenize(request)));
  const std::string out =
      line.json() ? dump(to_json(response)) : absl::StrJoin(response.token_ids(), ",");
  write_out(out + "\n");
  return kSuccess;
}

absl::StatusOr<int> run_detokenize(CommandLine& line) {
  TextFlags text;
  bool skip = true;
  text.add_to(&line);
  line.flags.text("token-ids", "IDS", "token ids, as in 1,2,3", &text.token_ids);
  line.flags.toggle("skip-special-tokens", "leave special tokens out of the text (default true)",
                    &skip);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse());
  if (!go) return kSuccess;
  TANDEM_ASSIGN_OR_RETURN(const auto ids, parse_token_ids(text.token_ids.value_or("")));
  v1::DetokenizeRequest request;
  request.set_model(text.model.value_or(""));
  request.set_skip_special_tokens(skip);
  *request.mutable_token_ids() = {ids.begin(), ids.end()};
  TANDEM_RETURN_IF_ERROR(line.connect(request.mutable_model()));
  TANDEM_ASSIGN_OR_RETURN(const auto response, from_server(line.client().detokenize(request)));
  write_out((line.json() ? dump(to_json(response)) : response.text()) + "\n");
  return kSuccess;
}

Json score_json(const v1::ScoreResponse& response) {
  Json out;
  out["request_id"] = response.request_id();
  out["prompt_tokens"] = Json::array();
  for (const auto& token : response.prompt_tokens()) {
    out["prompt_tokens"].push_back(token_to_json(token));
  }
  out["continuation_tokens"] = Json::array();
  for (const auto& token : response.continuation_tokens()) {
    out["continuation_tokens"].push_back(token_to_json(token));
  }
  out["total_logprob"] = response.total_logprob();
  out["usage"] = to_json(response.usage());
  return out;
}

absl::StatusOr<int> run_score(CommandLine& line) {
  TextFlags text;
  std::optional<std::string> continuation, continuation_ids;
  std::optional<double> top;
  bool score_prompt = false;
  text.add_to(&line);
  text.add_prompt_to(&line.flags);
  line.flags.text("token-ids", "IDS", "prompt as token ids, as in 1,2,3", &text.token_ids);
  line.flags.text("continuation", "TEXT", "text to score", &continuation);
  line.flags.text("continuation-token-ids", "IDS", "token ids to score", &continuation_ids);
  line.flags.toggle("score-prompt", "also score the tokens of the prompt", &score_prompt);
  line.flags.number("top-logprobs", "N", "alternatives per token, at most 20 (default 0)", 0, 20,
                    &top);
  TANDEM_ASSIGN_OR_RETURN(const bool go, line.parse());
  if (!go) return kSuccess;
  v1::ScoreRequest request;
  request.set_model(text.model.value_or(""));
  request.set_score_prompt(score_prompt);
  if (top.has_value()) request.set_top_logprobs(static_cast<int32_t>(*top));
  if (text.token_ids.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const auto ids, parse_token_ids(*text.token_ids));
    *request.mutable_token_ids()->mutable_ids() = {ids.begin(), ids.end()};
  } else {
    TANDEM_RETURN_IF_ERROR(text.put_prompt(&request));
  }
  if (continuation.has_value()) request.set_continuation_text(*continuation);
  if (continuation_ids.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const auto ids, parse_token_ids(*continuation_ids));
    *request.mutable_continuation_token_ids()->mutable_ids() = {ids.begin(), ids.end()};
  }
  TANDEM_RETURN_IF_ERROR(line.connect(request.mutable_model()));
  TANDEM_ASSIGN_OR_RETURN(const auto response, from_server(line.client().score(request)));
  if (line.json()) {
    write_out(dump(score_json(response)) + "\n");
    return kSuccess;
  }
  const auto print = [](const v1::Token& token) {
    std::printf("%8d  %10s  %s\n", token.id(),
                token.has_logprob() ? absl::StrFormat("%.4f", token.logprob()).c_str() : "-",
                quote_value(token.text()).c_str());
  };
  for (const auto& token : response.prompt_tokens()) print(token);
  for (const auto& token : response.continuation_tokens()) print(token);
  std::printf("   total  %10.4f\n", response.total_logprob());
  return kSuccess;
}

}  // namespace

Command tokenize_command() {
  return {"tokenize", "convert text to token ids", kTokenizeIntro, run_tokenize};
}

Command detokenize_command() {
  return {"detokenize", "convert token ids to text", kDetokenizeIntro, run_detokenize};
}

Command score_command() {
  return {"score", "print the log-probabilities of a given text", kScoreIntro, run_score};
}

}  // namespace tandem::cli
