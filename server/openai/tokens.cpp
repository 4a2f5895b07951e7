#include "server/openai/tokens.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "server/openai/fields.h"
#include "server/openai/request.h"
#include "server/openai/translation.h"

namespace tandem::openai {
absl::Status check_body(const std::string& body) {
  if (is_json(body) && kind_of(body) == JsonKind::kObject) return absl::OkStatus();
  return out_of_range("body", absl::StrCat(body.size(), " bytes that are not a JSON object"),
                      "one JSON object");
}

absl::StatusOr<v1::TokenizeRequest> tokenize_from(const std::string& body) {
  TANDEM_RETURN_IF_ERROR(check_body(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  v1::TokenizeRequest out;
  out.set_model(in.string("model").value_or(""));
  const auto prompt = in.string("prompt");
  const auto content = in.string("content");  // llama.cpp
  if (in.any("messages").has_value()) {
    chat_from(&in, out.mutable_chat(), &wrong);
    if (const auto x = in.boolean("add_generation_prompt")) {
      out.mutable_chat()->set_add_generation_prompt(*x);
    }
    in.only("add_special_tokens", "false");
    in.only("continue_final_message", "false");
    in.refuse("chat_template");
  } else if (prompt.has_value() != content.has_value()) {
    out.set_text(prompt.has_value() ? *prompt : *content);
    auto special = in.boolean("add_special_tokens");
    // llama.cpp adds none unless it is asked to.
    if (content.has_value() && !special.has_value()) {
      special = in.boolean("add_special").value_or(false);
    }
    if (special.has_value()) out.set_add_special_tokens(*special);
  } else {
    wrong.add(out_of_range("prompt", prompt.has_value() ? "next to content" : "none",
                           "one of prompt, messages, content"));
  }
  const bool strings = in.boolean("return_token_strs").value_or(false);
  out.set_return_token_texts(strings);
  in.only("with_pieces", "false");
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

absl::StatusOr<v1::DetokenizeRequest> detokenize_from(const std::string& body) {
  TANDEM_RETURN_IF_ERROR(check_body(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  v1::DetokenizeRequest out;
  out.set_model(in.string("model").value_or(""));
  for (const absl::string_view text : in.array("tokens")) {
    int32_t id = 0;
    if (kind_of(text) != JsonKind::kNumber || !absl::SimpleAtoi(text, &id)) {
      wrong.add(
          out_of_range(absl::StrCat("tokens[", out.token_ids_size(), "]"),
                       kind_of(text) == JsonKind::kNumber ? shown(text) : kind_name(kind_of(text)),
                       "a token id"));
      break;
    }
    out.add_token_ids(id);
  }
  // vLLM keeps special tokens here.
  out.set_skip_special_tokens(in.boolean("skip_special_tokens").value_or(false));
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

absl::StatusOr<v1::TokenizeRequest> count_tokens_from(const std::string& body) {
  const auto translation = messages_translation();
  TANDEM_ASSIGN_OR_RETURN(const std::string chat, translation->request(body));
  auto request = request_from(Kind::kChat, chat);
  if (!request.ok()) return translation->renamed(request.status());
  v1::TokenizeRequest out;
  out.set_model(request->message.model());
  *out.mutable_chat() = std::move(*request->message.mutable_chat());
  return out;
}

std::string tokenize_json(const std::vector<int32_t>& tokens, const std::vector<std::string>* texts,
                          int64_t context_length) {
  std::string strings = "null";
  if (texts != nullptr) {
    strings = absl::StrCat("[",
                           absl::StrJoin(*texts, ",",
                                         [](std::string* out, const std::string& text) {
                                           append_json_string(text, out);
                                         }),
                           "]");
  }
  return absl::StrCat("{\"count\":", tokens.size(), ",\"max_model_len\":", context_length,
                      ",\"tokens\":[", absl::StrJoin(tokens, ","), "],\"token_strs\":", strings,
                      "}");
}

std::string detokenize_json(absl::string_view text) {
  const std::string json = json_string(text);
  return absl::StrCat("{\"prompt\":", json, ",\"content\":", json, "}");
}

std::string count_tokens_json(size_t tokens) {
  return absl::StrCat("{\"input_tokens\":", tokens, "}");
}

}  // namespace tandem::openai
