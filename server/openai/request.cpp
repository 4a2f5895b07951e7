#include "server/openai/request.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/openai/constraint.h"
#include "server/openai/fields.h"

namespace tandem::openai {
namespace {

bool is_kind(absl::string_view value, JsonKind kind) { return kind_of(value) == kind; }

// Ids are not checked: only the engine knows the vocabulary.
void token_ids_from(const std::vector<absl::string_view>& ids, v1::TokenIds* out,
                    Violations* wrong) {
  for (const absl::string_view text : ids) {
    int32_t id = 0;
    if (is_kind(text, JsonKind::kNumber) && absl::SimpleAtoi(text, &id)) {
      out->add_ids(id);
      continue;
    }
    const std::string is =
        is_kind(text, JsonKind::kNumber) ? shown(text) : kind_name(kind_of(text));
    return wrong->add(
        out_of_range(absl::StrCat("prompt[", out->ids_size(), "]"), is, "a token id"));
  }
}

// A string, token ids, or a list of one of these.
void prompt_from(Fields* in, v1::GenerateRequest* out, Violations* wrong) {
  const auto prompt = in->any("prompt");
  if (!prompt.has_value()) {
    return wrong->add(out_of_range("prompt", "none", "a string or an array of token ids"));
  }
  absl::string_view value = *prompt;
  if (is_kind(value, JsonKind::kArray)) {
    const std::vector<absl::string_view> elements = elements_of(value);
    const bool list = !elements.empty() && !is_kind(elements[0], JsonKind::kNumber);
    if (!list) return token_ids_from(elements, out->mutable_token_ids(), wrong);
    if (elements.size() > 1) {
      return wrong->add(out_of_range("prompt", absl::StrCat("a list of ", elements.size()),
                                     "one prompt in a request"));
    }
    value = elements[0];
    if (is_kind(value, JsonKind::kArray)) {
      return token_ids_from(elements_of(value), out->mutable_token_ids(), wrong);
    }
  }
  if (!is_kind(value, JsonKind::kString)) {
    return wrong->add(
        out_of_range("prompt", kind_name(kind_of(value)), "a string or an array of token ids"));
  }
  out->set_text(string_of(value));
}

void stop_from(Fields* in, v1::GenerateRequest* out, Violations* wrong) {
  const auto stop = in->any("stop");
  if (!stop.has_value()) return;
  std::vector<absl::string_view> texts = {*stop};
  if (is_kind(*stop, JsonKind::kArray)) texts = elements_of(*stop);
  for (const absl::string_view text : texts) {
    if (!is_kind(text, JsonKind::kString)) {
      return wrong->add(
          out_of_range("stop", kind_name(kind_of(text)), "a string or an array of strings"));
    }
    out->add_stop_sequences(string_of(text));
  }
}

void logit_bias_from(Fields* in, v1::GenerateRequest* out, Violations* wrong) {
  const auto bias = in->of_kind("logit_bias", JsonKind::kObject);
  if (!bias.has_value()) return;
  for (const auto& [name, value] : members_of(*bias)) {
    int32_t id = 0;
    double number = 0;
    if (!absl::SimpleAtoi(name, &id) || !is_kind(value, JsonKind::kNumber) ||
        !absl::SimpleAtod(value, &number)) {
      return wrong->add(
          out_of_range("logit_bias", "an invalid entry", "{\"TOKEN_ID\": NUMBER, ...}"));
    }
    (*out->mutable_logit_bias())[id] = number;
  }
}

void max_tokens_from(Fields* in, Request* out, Violations* wrong) {
  const auto old = in->integer("max_tokens");
  const auto newer = out->kind == Kind::kChat ? in->integer("max_completion_tokens") : std::nullopt;
  if (newer.has_value()) out->max_tokens = "max_completion_tokens";
  if (old.has_value() && newer.has_value() && *old != *newer) {
    wrong->add(out_of_range("max_tokens", *old, "max_completion_tokens alone"));
  }
  if (newer.has_value() || old.has_value()) {
    out->message.set_max_new_tokens(newer.has_value() ? *newer : *old);
  }
}

void sampling_from(Fields* in, Request* out, Violations* wrong) {
  v1::GenerateRequest& message = out->message;
  if (const auto x = in->number("temperature")) message.set_temperature(*x);
  if (const auto x = in->number("top_p")) message.set_top_p(*x);
  if (const auto x = in->number("presence_penalty")) message.set_presence_penalty(*x);
  if (const auto x = in->number("frequency_penalty")) message.set_frequency_penalty(*x);
  if (const auto x = in->unsigned_integer("seed")) message.set_seed(*x);
  if (const auto x = in->integer("n")) message.set_n(*x);
  logit_bias_from(in, &message, wrong);
  stop_from(in, &message, wrong);
  max_tokens_from(in, out, wrong);
}

void stream_from(Fields* in, Request* out, Violations* wrong) {
  out->stream = in->boolean("stream").value_or(false);
  const auto options = in->of_kind("stream_options", JsonKind::kObject);
  if (!options.has_value()) return;
  if (!out->stream) {
    return wrong->add(out_of_range("stream_options", "an object", "unset without stream"));
  }
  Fields fields(*options, "stream_options.", wrong);
  out->include_usage = fields.boolean("include_usage").value_or(false);
  fields.only("include_obfuscation", "false");
  fields.end();
}

void completion_from(Fields* in, v1::GenerateRequest* out, Violations* wrong) {
  prompt_from(in, out, wrong);
  if (const auto top = in->integer("logprobs")) {
    out->set_logprobs(true);
    out->set_top_logprobs(*top);
  }
  const auto best_of = in->integer("best_of");
  const int n = out->has_n() ? out->n() : 1;
  if (best_of.has_value() && *best_of != n) {
    wrong->add(
        out_of_range("best_of", *best_of, absl::StrCat(n, ", the value of n (not supported)")));
  }
  in->only("echo", "false");
  in->only("suffix", "\"\"");
}

void chat_completion_from(Fields* in, v1::GenerateRequest* out, Violations* wrong) {
  chat_from(in, out->mutable_chat(), wrong);
  const bool logprobs = in->boolean("logprobs").value_or(false);
  if (logprobs) out->set_logprobs(true);
  if (const auto top = in->integer("top_logprobs")) {
    if (!logprobs) wrong->add(out_of_range("top_logprobs", *top, "unset without logprobs"));
    out->set_top_logprobs(*top);
  }
  if (const auto list = in->any("modalities"); list.has_value()) {
    const bool array = is_kind(*list, JsonKind::kArray);
    const auto elements = array ? elements_of(*list) : std::vector<absl::string_view>{};
    if (elements != std::vector<absl::string_view>{"\"text\""}) {
      wrong->add(out_of_range("modalities", array ? "another list" : kind_name(kind_of(*list)),
                              "[\"text\"] or unset (others are not supported)"));
    }
  }
  in->only("store", "false");
  in->only("service_tier", "\"auto\"");
  for (const char* name : {"audio", "prediction", "reasoning_effort", "verbosity",
                           "web_search_options", "functions", "function_call", "moderation"}) {
    in->refuse(name);
  }
  for (const char* name : {"metadata", "safety_identifier", "prompt_cache_key",
                           "prompt_cache_options", "prompt_cache_retention"}) {
    in->ignore(name);
  }
}

// Names of tandem.v1 and of OpenAI. A field in neither table came from the member "tandem".
struct Renaming {
  absl::string_view ours, completion, chat;
};
constexpr std::array kRenamings = {
    Renaming{"text", "prompt", "messages"},
    Renaming{"token_ids", "prompt", "messages"},
    Renaming{"prompt", "prompt", "messages"},
    Renaming{"chat", "prompt", "messages"},
    Renaming{"chat.tools", "tools", "tools"},
    Renaming{"chat.messages", "messages", "messages"},
    Renaming{"chat.template_args", "chat_template_kwargs", "chat_template_kwargs"},
    Renaming{"stop_sequences", "stop", "stop"},
    Renaming{"top_logprobs", "logprobs", "top_logprobs"},
    Renaming{"json_schema", "response_format", "response_format"},
};
constexpr std::array<absl::string_view, 9> kSame = {
    "model",      "temperature", "top_p", "presence_penalty", "frequency_penalty",
    "logit_bias", "seed",        "n",     "logprobs"};

// `field` is `name`, or an element or a member of it: "chat.messages[1].role" of "chat.messages".
bool is_of(absl::string_view field, absl::string_view name) {
  return absl::StartsWith(field, name) &&
         (field.size() == name.size() || field[name.size()] == '[' || field[name.size()] == '.');
}

std::string new_name(absl::string_view field, Kind kind, absl::string_view max_tokens) {
  if (field.empty()) return "";
  if (field == "max_new_tokens") return std::string(max_tokens);
  const Renaming* best = nullptr;
  for (const Renaming& r : kRenamings) {
    if (is_of(field, r.ours) && (best == nullptr || r.ours.size() > best->ours.size())) best = &r;
  }
  if (best != nullptr) {
    return absl::StrCat(kind == Kind::kChat ? best->chat : best->completion,
                        field.substr(best->ours.size()));
  }
  for (const absl::string_view same : kSame) {
    if (is_of(field, same)) return std::string(field);
  }
  return absl::StrCat("tandem.", field);
}

}  // namespace

absl::StatusOr<Request> request_from(Kind kind, const std::string& body) {
  if (!is_json(body) || !is_kind(body, JsonKind::kObject)) {
    return out_of_range("body", absl::StrCat(body.size(), " bytes that are not a JSON object"),
                        "one JSON object");
  }
  Request out;
  out.kind = kind;
  Violations wrong;
  Fields in(body, "", &wrong);
  if (const auto extension = in.of_kind("tandem", JsonKind::kObject)) {
    extension_from(*extension, &out.message, &wrong);
  }
  out.message.set_model(in.string("model").value_or(""));
  sampling_from(&in, &out, &wrong);
  stream_from(&in, &out, &wrong);
  if (kind == Kind::kChat) {
    chat_completion_from(&in, &out.message, &wrong);
  } else {
    completion_from(&in, &out.message, &wrong);
  }
  constraint_from(&in, &out.message, &wrong);
  in.ignore("user");
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

absl::Status renamed(const absl::Status& status, Kind kind, absl::string_view max_tokens) {
  const std::vector<Violation> violations = violations_of(status);
  if (violations.empty()) return status;
  Violations out;
  for (const Violation& v : violations) {
    out.add(wrong_field(new_name(v.field, kind, max_tokens), v.description));
  }
  absl::Status out_status = out.status();
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (!out_status.GetPayload(type).has_value())
      out_status.SetPayload(type, payload);  // such as the reason
  });
  return out_status;
}

}  // namespace tandem::openai
