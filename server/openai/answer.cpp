#include "server/openai/answer.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

constexpr double kLeastLogprob = -9999.0;  // OpenAI's: JSON has no infinity

std::string number(double logprob) {
  return nlohmann::json(std::isfinite(logprob) ? logprob : kLeastLogprob).dump();
}

// "METHOD_BILD" -> "bild"
std::string word(const std::string& name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

const char* reason(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_TIME_LIMIT:
      return "\"length\"";
    default:
      return "\"stop\"";
  }
}

// --- Log-probabilities

std::string bytes_json(const std::string& bytes) {
  std::string out = "[";
  for (const char c : bytes) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", static_cast<int>(static_cast<uint8_t>(c)));
  }
  return out + "]";
}

template <class Token>  // or TopLogprob
std::string token_members(const Token& token) {
  return absl::StrCat("\"token\":", json_string(token.text()),
                      ",\"logprob\":", number(static_cast<double>(token.logprob())),
                      ",\"bytes\":", bytes_json(token.bytes()));
}

template <class Tokens>
std::string chat_logprobs(const Tokens& tokens) {
  std::string out = "{\"content\":[";
  const char* comma = "";
  for (const v1::Token& token : tokens) {
    absl::StrAppend(&out, std::exchange(comma, ","), "{", token_members(token),
                    ",\"top_logprobs\":[");
    const char* inner = "";
    for (const v1::TopLogprob& top : token.top_logprobs()) {
      absl::StrAppend(&out, std::exchange(inner, ","), "{", token_members(top), "}");
    }
    out += "]}";
  }
  return out + "],\"refusal\":null}";
}

// As completions name a token: its text, or the bytes of what is not text on its own.
template <class Token>
std::string token_name(const Token& token) {
  if (token.text().find("\xEF\xBF\xBD") == std::string::npos) return token.text();
  std::string out = "bytes:";
  for (const char c : token.bytes()) {
    absl::StrAppend(&out, "\\x", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  }
  return out;
}

int64_t characters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

// Moves `offset` on, characters of the answer.
template <class Tokens>
std::string completion_logprobs(const Tokens& tokens, int64_t* offset) {
  std::string names, logprobs, tops, offsets;
  const char* comma = "";
  for (const v1::Token& token : tokens) {
    absl::StrAppend(&names, comma, json_string(token_name(token)));
    absl::StrAppend(&logprobs, comma, number(static_cast<double>(token.logprob())));
    absl::StrAppend(&offsets, comma, *offset);
    absl::StrAppend(&tops, comma, "{");
    std::set<std::string> named;  // two tokens may have one text: the better one stands
    for (const v1::TopLogprob& top : token.top_logprobs()) {
      const std::string name = token_name(top);
      if (!named.insert(name).second) continue;
      absl::StrAppend(&tops, named.size() > 1 ? "," : "", json_string(name), ":",
                      number(static_cast<double>(top.logprob())));
    }
    tops += "}";
    *offset += characters(token.bytes());
    comma = ",";
  }
  return absl::StrCat("{\"tokens\":[", names, "],\"token_logprobs\":[", logprobs,
                      "],\"top_logprobs\":[", tops, "],\"text_offset\":[", offsets, "]}");
}

// --- Parts of answers

const char* object_of(Kind kind, bool stream) {
  if (kind == Kind::kCompletion) return "text_completion";
  return stream ? "chat.completion.chunk" : "chat.completion";
}

std::string opening(const Head& head, bool stream) {
  return absl::StrCat(
      "{\"id\":",
      json_string(absl::StrCat(head.kind == Kind::kChat ? "chatcmpl-" : "cmpl-", head.request_id)),
      ",\"object\":\"", object_of(head.kind, stream), "\",\"created\":", head.created,
      ",\"model\":", json_string(head.model), ",\"choices\":[");
}

void add_usage(const v1::Usage& choice, v1::Usage* all) {
  all->set_prompt_tokens(choice.prompt_tokens());
  all->set_cached_tokens(choice.cached_tokens());
  all->set_completion_tokens(all->completion_tokens() + choice.completion_tokens());
}

std::string usage_json(const v1::Usage& usage) {
  return absl::StrCat(
      "{\"prompt_tokens\":", usage.prompt_tokens(),
      ",\"completion_tokens\":", usage.completion_tokens(),
      ",\"total_tokens\":", int64_t{usage.prompt_tokens()} + usage.completion_tokens(),
      ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens(), "}}");
}

// The seed as a string: it has 64 bits, and JavaScript's numbers have 53.
std::string tandem_json(const v1::Started& started, const v1::Finished& finished) {
  return absl::StrCat(
      "{\"method\":\"", word(v1::Method_Name(started.method()), "METHOD_"), "\",\"contract\":\"",
      word(v1::Contract_Name(started.contract()), "CONTRACT_"), "\",\"seed\":\"", finished.seed(),
      "\",\"tokens_per_pass\":", nlohmann::json(finished.stats().tokens_per_pass()).dump(), "}");
}

std::string choice_json(const Head& head, const v1::Choice& choice) {
  int64_t offset = 0;
  const bool chat = head.kind == Kind::kChat;
  const std::string logprobs = !head.logprobs ? "null"
                               : chat         ? chat_logprobs(choice.tokens())
                                              : completion_logprobs(choice.tokens(), &offset);
  const std::string text = chat ? absl::StrCat("\"message\":{\"role\":\"assistant\",\"content\":",
                                               json_string(choice.text()), ",\"refusal\":null}")
                                : absl::StrCat("\"text\":", json_string(choice.text()));
  return absl::StrCat("{\"index\":", choice.index(), ",", text, ",\"logprobs\":", logprobs,
                      ",\"finish_reason\":", reason(choice.finished().finish_reason()), "}");
}

}  // namespace

std::string answer_json(const Head& head, const v1::CompleteResponse& answer) {
  std::string out = opening(head, /*stream=*/false);
  v1::Usage usage;
  const char* comma = "";
  for (const v1::Choice& choice : answer.choices()) {
    absl::StrAppend(&out, std::exchange(comma, ","), choice_json(head, choice));
    add_usage(choice.finished().usage(), &usage);
  }
  return absl::StrCat(out, "],\"usage\":", usage_json(usage),
                      ",\"tandem\":", tandem_json(answer.started(), answer.choices(0).finished()),
                      "}");
}

Events::Events(Head head, bool include_usage)
    : head_(std::move(head)),
      include_usage_(include_usage),
      opening_("data: " + opening(head_, /*stream=*/true)) {}

std::string Events::event(absl::string_view choice, absl::string_view more) const {
  return absl::StrCat(opening_, choice, "]", more, include_usage_ ? ",\"usage\":null" : "",
                      "}\n\n");
}

std::string Events::started(const v1::Started& event, int choices) {
  started_ = event;
  offsets_.assign(static_cast<size_t>(choices), 0);
  std::string out;
  for (int i = 0; head_.kind == Kind::kChat && i < choices; ++i) {
    out += this->event(
        absl::StrCat("{\"index\":", i,
                     ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
                     "\"logprobs\":null,\"finish_reason\":null}"));
  }
  return out;
}

std::string Events::chunk(int index, const std::string& text,
                          const std::vector<v1::Token>& tokens) {
  const bool chat = head_.kind == Kind::kChat;
  const std::string logprobs =
      !head_.logprobs ? "null"
      : chat          ? chat_logprobs(tokens)
                      : completion_logprobs(tokens, &offsets_[static_cast<size_t>(index)]);
  return event(absl::StrCat(
      "{\"index\":", index, chat ? ",\"delta\":{\"content\":" : ",\"text\":", json_string(text),
      chat ? "}" : "", ",\"logprobs\":", logprobs, ",\"finish_reason\":null}"));
}

std::string Events::finished(const v1::Finished& event) {
  add_usage(event.usage(), &usage_);
  return this->event(
      absl::StrCat("{\"index\":", event.index(),
                   head_.kind == Kind::kChat ? ",\"delta\":{}" : ",\"text\":\"\"",
                   ",\"logprobs\":null,\"finish_reason\":", reason(event.finish_reason()), "}"),
      absl::StrCat(",\"tandem\":", tandem_json(started_, event)));
}

std::string Events::end() const {
  std::string done = "data: [DONE]\n\n";
  if (!include_usage_) return done;
  return absl::StrCat(opening_, "],\"usage\":", usage_json(usage_), "}\n\n", done);
}

std::string Events::error(const std::string& json) { return absl::StrCat("data: ", json, "\n\n"); }

std::string model_json(const v1::Model& model, int64_t created) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string all;
  // It fails for what is not UTF-8, which names are.
  if (!google::protobuf::util::MessageToJsonString(model, &all, options).ok()) all = "{}";
  return absl::StrCat("{\"id\":", json_string(model.name()),
                      ",\"object\":\"model\",\"created\":", created,
                      ",\"owned_by\":\"tandem\",\"tandem\":", all, "}");
}

std::string models_json(const std::vector<v1::Model>& models, int64_t created) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  const char* comma = "";
  for (const v1::Model& model : models) {
    absl::StrAppend(&out, std::exchange(comma, ","), model_json(model, created));
  }
  return out + "]}";
}

}  // namespace tandem::openai
