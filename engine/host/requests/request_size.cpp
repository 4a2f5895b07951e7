#include "engine/host/requests/request_size.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr int64_t kRequestBytes = 1024;
// A template may drop most of its input (old reasoning, tools).
constexpr int64_t kLeastChatBytes = 256 << 10;

template <class T>
int64_t list_bytes(const std::vector<T>& list) {
  return static_cast<int64_t>(list.size() * sizeof(T));
}

int64_t text_bytes(const std::string& text) { return static_cast<int64_t>(text.size()); }

int64_t prompt_bytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text_bytes(*text);
  if (const auto* ids = std::get_if<std::vector<Token>>(&prompt)) return list_bytes(*ids);
  const auto& chat = std::get<ChatPrompt>(prompt);
  return text_bytes(chat.messages_json) + text_bytes(chat.tools_json) +
         text_bytes(chat.template_args_json);
}

int64_t continuation_bytes(const ScoreRequest& request) {
  if (const auto* text = std::get_if<std::string>(&request.continuation)) return text_bytes(*text);
  return list_bytes(std::get<std::vector<Token>>(request.continuation));
}

absl::Status too_large(const Deployment& deployment, absl::string_view field, int64_t bytes,
                       int64_t allowed) {
  return with_reason(
      out_of_range(
          field, absl::StrCat(bytes, " bytes"),
          absl::StrCat("at most ", allowed, " bytes (a context of ", deployment.context_length,
                       " tokens, the longest of ", deployment.longest_piece, " bytes)")),
      "CONTEXT_LENGTH_EXCEEDED");
}

absl::Status check_bytes(const Deployment& deployment, absl::string_view field, int64_t bytes,
                         int64_t allowed, int64_t most) {
  if (bytes > allowed) return too_large(deployment, field, bytes, allowed);
  if (bytes <= most) return absl::OkStatus();
  return out_of_range(field, absl::StrCat(bytes, " bytes"),
                      absl::StrCat("at most ", most, " bytes (half of limits.max_waiting_bytes)"));
}

absl::Status check_prompt(const Deployment& deployment, const Prompt& prompt, int64_t most) {
  const int64_t bytes = prompt_bytes(prompt);
  const int64_t context = deployment.max_text_bytes();
  if (std::holds_alternative<std::string>(prompt)) {
    return check_bytes(deployment, "text", bytes, context, most);
  }
  if (std::holds_alternative<ChatPrompt>(prompt)) {
    return check_bytes(deployment, "chat", bytes, std::max(context, kLeastChatBytes), most);
  }
  return check_bytes(deployment, "token_ids", bytes, most, most);  // already tokenized
}

}  // namespace

int64_t bytes_of(const GenerateRequest& request) {
  int64_t bytes =
      kRequestBytes + prompt_bytes(request.prompt) + list_bytes(request.sampling.logit_bias) +
      list_bytes(request.sampling.bad_token_ids) + list_bytes(request.stopping.stop_token_ids);
  if (request.constraint) {
    bytes +=
        text_bytes(request.constraint->text) + text_bytes(request.constraint->whitespace_pattern);
  }
  for (const std::string& stop : request.stopping.stop_sequences) bytes += text_bytes(stop);
  return bytes;
}

int64_t bytes_of(const ScoreRequest& request) {
  return kRequestBytes + prompt_bytes(request.prompt) + continuation_bytes(request);
}

int64_t bytes_of(const EmbedRequest& request) {
  return kRequestBytes + prompt_bytes(request.prompt) + text_bytes(request.prefix.value_or(""));
}

int64_t bytes_of(const TokenizeRequest& request) {
  return kRequestBytes + prompt_bytes(request.prompt);
}

int64_t bytes_of(const DetokenizeRequest& request) {
  return kRequestBytes + list_bytes(request.token_ids);
}

absl::Status check_size(const Deployment& deployment, const GenerateRequest& request,
                        int64_t most) {
  return check_prompt(deployment, request.prompt, most - kRequestBytes);
}

absl::Status check_size(const Deployment& deployment, const ScoreRequest& request, int64_t most) {
  TANDEM_RETURN_IF_ERROR(check_prompt(deployment, request.prompt, most / 2));
  return check_bytes(deployment, "continuation", continuation_bytes(request),
                     deployment.max_text_bytes(), most / 2);
}

absl::Status check_size(const Deployment& deployment, const EmbedRequest& request, int64_t most) {
  TANDEM_RETURN_IF_ERROR(check_prompt(deployment, request.prompt, most / 2));
  return check_bytes(deployment, "prefix", text_bytes(request.prefix.value_or("")),
                     deployment.max_text_bytes(), most / 2 - kRequestBytes);
}

absl::Status check_size(const Deployment& deployment, const TokenizeRequest& request,
                        int64_t most) {
  return check_prompt(deployment, request.prompt, most - kRequestBytes);
}

absl::Status check_size(const Deployment& deployment, const DetokenizeRequest& request,
                        int64_t most) {
  const auto ids = static_cast<int64_t>(request.token_ids.size());
  if (ids <= deployment.context_length) {
    return check_bytes(deployment, "token_ids", list_bytes(request.token_ids), most, most);
  }
  return with_reason(
      out_of_range("token_ids", absl::StrCat(ids, " of them"),
                   absl::StrCat("at most ", deployment.context_length, " (the model's context)")),
      "CONTEXT_LENGTH_EXCEEDED");
}

absl::Status check_text(const Deployment& deployment, absl::string_view field, size_t bytes) {
  const int64_t allowed = deployment.max_text_bytes();
  if (static_cast<int64_t>(bytes) <= allowed) return absl::OkStatus();
  return too_large(deployment, field, static_cast<int64_t>(bytes), allowed);
}

}  // namespace tandem
