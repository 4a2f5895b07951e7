#include "server/openai/answer.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

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

// --- Parts of responses

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

// The seed is a string, because it has 64 bits and JavaScript's numbers have 53.
std::string tandem_json(const v1::Started& started, const v1::Finished& finished) {
  const char* const satisfied = !finished.has_constraint_satisfied() ? ""
                                : finished.constraint_satisfied()
                                    ? ",\"constraint_satisfied\":true"
                                    : ",\"constraint_satisfied\":false";
  return absl::StrCat(
      "{\"method\":\"", word(v1::Method_Name(started.method()), "METHOD_"), "\",\"contract\":\"",
      word(v1::Contract_Name(started.contract()), "CONTRACT_"), "\",\"seed\":\"", finished.seed(),
      "\",\"tokens_per_pass\":", nlohmann::json(finished.stats().tokens_per_pass()).dump(),
      satisfied, "}");
}

}  // namespace

// --- Answer

Answer::Answer(Head head, int choices)
    : head_(std::move(head)),
      choices_(static_cast<size_t>(choices), Choice{"", Logprobs(head_.kind), {}}) {}

void Answer::chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  bytes_ -= choice.text.size() + choice.logprobs.bytes();
  if (!choice.text.empty()) choice.text.pop_back();  // the quotation mark
  const size_t end = choice.text.size();
  append_json_string(text, &choice.text);
  if (end > 0) choice.text.erase(end, 1);
  for (const v1::Token& token : tokens) choice.logprobs.add(token);
  bytes_ += choice.text.size() + choice.logprobs.bytes();
}

void Answer::finished(const v1::Finished& event) {
  choices_[static_cast<size_t>(event.index())].finished = event;
}

std::string Answer::json() const {
  const bool chat = head_.kind == Kind::kChat;
  std::string out = opening(head_, /*stream=*/false);
  out.reserve(out.size() + bytes_ + 512 * choices_.size());
  v1::Usage usage;
  const char* comma = "";
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    absl::StrAppend(&out, std::exchange(comma, ","), "{\"index\":", i,
                    chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":",
                    choice.text.empty() ? "\"\"" : choice.text, chat ? ",\"refusal\":null}" : "",
                    ",\"logprobs\":");
    if (head_.logprobs) {
      choice.logprobs.append_to(&out);
    } else {
      out += "null";
    }
    absl::StrAppend(&out, ",\"finish_reason\":", reason(choice.finished.finish_reason()), "}");
    add_usage(choice.finished.usage(), &usage);
  }
  v1::Finished first = choices_[0].finished;  // and whether all choices satisfy the constraint
  for (const Choice& choice : choices_) {
    if (!choice.finished.has_constraint_satisfied()) continue;
    first.set_constraint_satisfied(first.constraint_satisfied() &&
                                   choice.finished.constraint_satisfied());
  }
  absl::StrAppend(&out, "],\"usage\":", usage_json(usage),
                  ",\"tandem\":", tandem_json(started_, first), "}");
  return out;
}

// --- Events

Events::Events(Head head, bool include_usage)
    : head_(std::move(head)),
      include_usage_(include_usage),
      opening_("data: " + opening(head_, /*stream=*/true)),
      ending_(include_usage ? ",\"usage\":null}\n\n" : "}\n\n") {}

std::string Events::event(absl::string_view choice, absl::string_view more) const {
  return absl::StrCat(opening_, choice, "]", more, ending_);
}

std::string Events::started(const v1::Started& event, int choices) {
  started_ = event;
  logprobs_.assign(static_cast<size_t>(choices), Logprobs(head_.kind));
  std::string out;
  for (int i = 0; head_.kind == Kind::kChat && i < choices; ++i) {
    out += this->event(
        absl::StrCat("{\"index\":", i,
                     ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
                     "\"logprobs\":null,\"finish_reason\":null}"));
  }
  return out;
}

std::string Events::chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens) {
  const bool chat = head_.kind == Kind::kChat;
  std::string out;
  out.reserve(opening_.size() + text.size() + 128);
  absl::StrAppend(&out, opening_, "{\"index\":", index,
                  chat ? ",\"delta\":{\"content\":" : ",\"text\":");
  append_json_string(text, &out);
  absl::StrAppend(&out, chat ? "}" : "", ",\"logprobs\":");
  if (head_.logprobs) {
    Logprobs& logprobs = logprobs_[static_cast<size_t>(index)];
    for (const v1::Token& token : tokens) logprobs.add(token);
    logprobs.append_to(&out);
    logprobs.clear();
  } else {
    out += "null";
  }
  absl::StrAppend(&out, ",\"finish_reason\":null}]", ending_);
  return out;
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
  // Fails only for text that is not UTF-8; names are UTF-8.
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
