#include "engine/host/requests/resolve_prompt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/host/models/alignment.h"
#include "engine/host/requests/request_size.h"
#include "engine/host/requests/tool_prompt.h"

namespace tandem {
namespace {

// Tokens at the end of a prompt that the decoding of the next ones depends on.
constexpr size_t kDecodeContext = 8;

// A prompt as text: the client's, or a rendered chat.
struct PromptText {
  std::string text;
  bool add_special_tokens;
};

// `chat`: the model whose template renders.
absl::StatusOr<PromptText> render(const Deployment& deployment, const LoadedModel& chat,
                                  const Prompt& prompt, bool add_special_tokens) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (text->empty()) return out_of_range("prompt", "empty", "1 token or more");
    return PromptText{*text, add_special_tokens};
  }
  if (!chat.chat || !chat.chat->present()) {
    return with_reason(
        absl::FailedPreconditionError(absl::StrCat("chat: model \"", deployment.name,
                                                   "\" has no chat template; offered: text, "
                                                   "token_ids")),
        "NO_CHAT_TEMPLATE");
  }
  const ChatPrompt messages = with_tools_in_messages(
      std::get<ChatPrompt>(prompt), chat.chat->source(), deployment.answer_format(chat).tools);
  TANDEM_ASSIGN_OR_RETURN(
      std::string rendered,
      chat.chat->render(messages.messages_json, messages.tools_json, messages.template_args_json,
                        messages.add_generation_prompt));
  TANDEM_RETURN_IF_ERROR(check_text(deployment, "chat, rendered", rendered.size()));
  return PromptText{std::move(rendered), false};
}

absl::StatusOr<std::vector<Token>> encode(const PromptText& prompt, const LoadedModel& model,
                                          int vocab_size) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<Token> tokens,
                          model.tokenizer->encode(prompt.text, prompt.add_special_tokens));
  if (tokens.empty()) return out_of_range("prompt", "empty", "1 token or more");
  // A tokenizer may know more ids than the model has rows.
  TANDEM_RETURN_IF_ERROR(check_tokens("prompt tokens", tokens, vocab_size));
  return tokens;
}

void truncate_start(int64_t tokens_left, TokenizedPrompt* prompt) {
  const int64_t drop = static_cast<int64_t>(prompt->tokens.size()) - tokens_left;
  if (drop <= 0) return;
  prompt->tokens.erase(prompt->tokens.begin(), prompt->tokens.begin() + drop);
  if (prompt->alignment.empty()) return;
  prompt->alignment.erase(prompt->alignment.begin(), prompt->alignment.begin() + drop);
  const int unused = prompt->alignment.front();
  prompt->read.erase(prompt->read.begin(), prompt->read.begin() + unused);
  for (int& row : prompt->alignment) row -= unused;
}

// For a conditioned small model with a distinct tokenizer: in the large model's tokens, or in both
// models' tokens, aligned.
absl::StatusOr<TokenizedPrompt> tokenize_conditioned(const Deployment& d,
                                                     const GenerateRequest& request) {
  const AdapterShape& adapter = *d.conditioning->adapter;
  const bool is_text = !std::holds_alternative<std::vector<Token>>(request.prompt);
  TokenizedPrompt out;
  if (!adapter.aligned) {
    TANDEM_ASSIGN_OR_RETURN(out.tokens, tokenize(d, request.prompt, request.add_special_tokens));
    if (!adapter.foreign || !is_text) return out;
    TANDEM_ASSIGN_OR_RETURN(const PromptText text,
                            render(d, *d.large, request.prompt, request.add_special_tokens));
    TANDEM_ASSIGN_OR_RETURN(out.context, d.small->tokenizer->encode(text.text, false));
    return out;
  }
  if (!is_text) {
    return out_of_range(
        "prompt", "token_ids",
        absl::StrCat("text, chat with method ", d.conditioning->method, " (", d.large->config.name,
                     " and ", d.small->config.name, " have different tokens)"));
  }
  const bool own_template = d.small->chat && d.small->chat->present();
  TANDEM_ASSIGN_OR_RETURN(
      const PromptText text,
      render(d, own_template ? *d.small : *d.large, request.prompt, request.add_special_tokens));
  TANDEM_ASSIGN_OR_RETURN(out.read, encode(text, *d.large, d.vocab_size));
  TANDEM_ASSIGN_OR_RETURN(out.tokens, encode(text, *d.small, d.small_vocab_size));
  out.alignment =
      align_tokens(text.text, *d.large->tokenizer, out.read, *d.small->tokenizer, out.tokens);
  return out;
}

}  // namespace

absl::StatusOr<TokenizedPrompt> tokenize_prompt(const Deployment& d,
                                                const GenerateRequest& request) {
  TokenizedPrompt out;
  if (request.truncate_prompt_tokens && *request.truncate_prompt_tokens < 1) return out;
  const bool conditioned = d.answers_in_small_tokens(request);
  if (conditioned) {
    TANDEM_ASSIGN_OR_RETURN(out, tokenize_conditioned(d, request));
  } else {
    TANDEM_ASSIGN_OR_RETURN(out.tokens, tokenize(d, request.prompt, request.add_special_tokens));
  }
  if (request.truncate_prompt_tokens) truncate_start(*request.truncate_prompt_tokens, &out);
  const bool foreign = conditioned && d.conditioning->adapter->foreign;
  const std::vector<Token>& text = foreign ? out.context : out.tokens;
  const auto last = static_cast<ptrdiff_t>(std::min(text.size(), kDecodeContext));
  out.context = std::vector<Token>(text.end() - last, text.end());
  return out;
}

absl::Status check_tokens(absl::string_view field, const std::vector<Token>& ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return out_of_range(absl::StrCat(field, "[", i, "]"), ids[i],
                          absl::StrCat("0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Token>> tokenize(const Deployment& deployment, const Prompt& prompt,
                                            bool add_special_tokens) {
  const LoadedModel& model = *deployment.large;
  if (const auto* ids = std::get_if<std::vector<Token>>(&prompt)) {
    TANDEM_RETURN_IF_ERROR(check_tokens("token_ids", *ids, deployment.vocab_size));
    if (ids->empty()) return out_of_range("prompt", "empty", "1 token or more");
    return *ids;
  }
  TANDEM_ASSIGN_OR_RETURN(const PromptText text,
                          render(deployment, model, prompt, add_special_tokens));
  return encode(text, model, deployment.vocab_size);
}

absl::StatusOr<std::string> detokenize(const Deployment& deployment, absl::Span<const int64_t> ids,
                                       bool skip_special_tokens) {
  std::vector<Token> tokens;
  const Tokenizer& tokenizer = *deployment.large->tokenizer;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= tokenizer.vocab_size()) {
      return out_of_range(absl::StrCat("token_ids[", i, "]"), ids[i],
                          absl::StrCat("0 to ", tokenizer.vocab_size() - 1));
    }
    tokens.push_back(static_cast<Token>(ids[i]));
  }
  return tokenizer.decode(tokens, skip_special_tokens);
}

absl::Status too_long(int64_t prompt, const std::string& allowed) {
  return with_reason(
      out_of_range("prompt", absl::StrCat(prompt, " tokens"),
                   absl::StrCat("at most ", allowed, "; truncate_prompt_tokens keeps its end")),
      "CONTEXT_LENGTH_EXCEEDED");
}

}  // namespace tandem
