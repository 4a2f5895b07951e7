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

constexpr int32_t kMaxBestOf = 16;  // choices of a request

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

constexpr size_t kMaxPrompts = 256;

// Sets the prompt of `out` to a string or a list of token ids. False for another type.
bool one_prompt_from(absl::string_view value, v1::GenerateRequest* out, Violations* wrong) {
  if (is_kind(value, JsonKind::kString)) {
    out->set_text(string_of(value));
    return true;
  }
  if (!is_kind(value, JsonKind::kArray)) return false;
  token_ids_from(elements_of(value), out->mutable_token_ids(), wrong);
  return true;
}

// A string, token ids, or a list of these.
void prompt_from(Fields* in, Request* out, Violations* wrong) {
  constexpr char kAllowed[] = "a string, an array of token ids, or a list of these";
  const auto prompt = in->any("prompt");
  if (!prompt.has_value()) return wrong->add(out_of_range("prompt", "none", kAllowed));
  std::vector<absl::string_view> prompts = {*prompt};
  if (is_kind(*prompt, JsonKind::kArray)) {
    std::vector<absl::string_view> elements = elements_of(*prompt);
    const bool list = !elements.empty() && !is_kind(elements[0], JsonKind::kNumber);
    if (list) prompts = std::move(elements);
  }
  if (prompts.size() > kMaxPrompts) {
    return wrong->add(out_of_range("prompt", absl::StrCat("a list of ", prompts.size()),
                                   absl::StrCat("at most ", kMaxPrompts, " prompts")));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    v1::GenerateRequest* const one = i == 0 ? &out->message : &out->more_prompts.emplace_back();
    if (one_prompt_from(prompts[i], one, wrong)) continue;
    const std::string path = prompts.size() > 1 ? absl::StrCat("prompt[", i, "]") : "prompt";
    return wrong->add(out_of_range(path, kind_name(kind_of(prompts[i])), kAllowed));
  }
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

// An entry of logit_bias: a number, or false, which bans the token (llama.cpp).
bool add_bias(absl::string_view token, absl::string_view bias, v1::GenerateRequest* out) {
  int32_t id = 0;
  double number = 0;
  if (!absl::SimpleAtoi(token, &id)) return false;
  if (bias == "false") {
    out->add_bad_token_ids(id);
    return true;
  }
  if (!is_kind(bias, JsonKind::kNumber) || !absl::SimpleAtod(bias, &number)) return false;
  (*out->mutable_logit_bias())[id] = number;
  return true;
}

void logit_bias_from(Fields* in, v1::GenerateRequest* out, Violations* wrong) {
  const auto bias = in->any("logit_bias");
  if (!bias.has_value()) return;
  bool good = true;
  if (is_kind(*bias, JsonKind::kObject)) {
    for (const auto& [name, value] : members_of(*bias)) good = good && add_bias(name, value, out);
  } else if (is_kind(*bias, JsonKind::kArray)) {
    for (const absl::string_view pair : elements_of(*bias)) {
      const bool array = is_kind(pair, JsonKind::kArray);
      const auto parts = array ? elements_of(pair) : std::vector<absl::string_view>{};
      good = good && parts.size() == 2 && add_bias(parts[0], parts[1], out);
    }
  } else {
    return wrong->add(
        out_of_range("logit_bias", kind_name(kind_of(*bias)), "an object or an array of pairs"));
  }
  if (!good) {
    wrong->add(out_of_range("logit_bias", "an invalid entry",
                            "{\"TOKEN_ID\": NUMBER, ...} or [[TOKEN_ID, NUMBER], ...]; false in "
                            "place of a number bans the token"));
  }
}

// The limit of tokens has several names. -1 means none.
void max_tokens_from(Fields* in, Request* out, Violations* wrong) {
  std::optional<int32_t> limit;
  for (const char* const name : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    if (out->kind != Kind::kChat && name == absl::string_view("max_completion_tokens")) continue;
    const auto given = in->integer(name);
    if (!given.has_value()) continue;
    if (limit.has_value() && *limit != *given) {
      wrong->add(out_of_range(name, *given,
                              absl::StrCat(out->names["max_new_tokens"], " alone, or equal")));
    }
    if (!limit.has_value()) out->names["max_new_tokens"] = name;
    limit = given;
  }
  out->fill_context = !limit.has_value() || *limit == -1;
  if (!out->fill_context) out->message.set_max_new_tokens(*limit);
}

void sampling_from(Fields* in, Request* out, Violations* wrong) {
  v1::GenerateRequest& message = out->message;
  if (in->any("seed") != "-1") {  // llama.cpp's name for "draw one"
    if (const auto x = in->unsigned_integer("seed")) message.set_seed(*x);
  }
  logit_bias_from(in, &message, wrong);
  stop_from(in, &message, wrong);
  max_tokens_from(in, out, wrong);
  // Penalties cover the whole text here, and its last tokens in llama.cpp.
  const auto last_n = in->integer("repeat_last_n");
  const bool penalized = message.has_repetition_penalty() && message.repetition_penalty() != 1;
  if (last_n.has_value() && *last_n != -1 && penalized) {
    wrong->add(out_of_range("repeat_last_n", *last_n, "-1 with a repeat_penalty"));
  }
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
  out->usage_so_far = fields.boolean("continuous_usage_stats").value_or(false);
  fields.only("include_obfuscation", "false");
  fields.end();
}

void best_of_from(Fields* in, Request* out, Violations* wrong) {
  const auto best_of = in->integer("best_of");
  const int n = out->message.has_n() ? out->message.n() : 1;
  if (!best_of.has_value() || *best_of == n) return;
  if (*best_of < n || *best_of > kMaxBestOf || out->stream) {
    return wrong->add(out_of_range("best_of", *best_of,
                                   out->stream ? absl::StrCat(n, ", the value of n, with stream")
                                               : absl::StrCat("[", n, ", ", kMaxBestOf, "]")));
  }
  out->best = n;
  out->message.set_n(*best_of);
  out->names["n"] = "best_of";
  out->message.set_logprobs(true);  // the choices are compared by them
}

void completion_from(Fields* in, Request* out, Violations* wrong) {
  v1::GenerateRequest& message = out->message;
  prompt_from(in, out, wrong);
  const auto logprobs = in->integer("logprobs");
  const auto n_probs = in->integer("n_probs");
  if (const auto top = logprobs.has_value() ? logprobs : n_probs; top.has_value()) {
    out->names["top_logprobs"] = logprobs.has_value() ? "logprobs" : "n_probs";
    // llama.cpp's clients send 0 for "none".
    if (logprobs.has_value() || *top != 0) {
      message.set_logprobs(true);
      message.set_top_logprobs(*top);
    }
  }
  out->logprobs = message.logprobs();
  best_of_from(in, out, wrong);
  out->echo = in->boolean("echo").value_or(false);
  if (out->echo && message.has_truncate_prompt_tokens()) {
    wrong->add(out_of_range("truncate_prompt_tokens", message.truncate_prompt_tokens(),
                            "unset with echo"));
  }
  if (out->echo && message.has_max_new_tokens() && message.max_new_tokens() == 0) {
    out->score_only = true;
    message.clear_max_new_tokens();
  }
  out->suffix = in->string("suffix").value_or("");
  if (out->suffix.empty()) return;
  if (out->echo) wrong->add(out_of_range("echo", "true", "false with suffix"));
  if (!message.has_text() || !out->more_prompts.empty()) {
    wrong->add(out_of_range("prompt", "not a string", "one string with suffix"));
  }
}

void chat_completion_from(Fields* in, Request* request, Violations* wrong) {
  v1::GenerateRequest* const out = &request->message;
  chat_from(in, out->mutable_chat(), wrong);
  if (const auto x = in->boolean("add_generation_prompt")) {
    out->mutable_chat()->set_add_generation_prompt(*x);
  }
  request->logprobs = in->boolean("logprobs").value_or(false);
  if (request->logprobs) out->set_logprobs(true);
  if (const auto top = in->integer("top_logprobs")) {
    // 0 asks for nothing; several clients always send it.
    if (!request->logprobs && *top != 0) {
      wrong->add(out_of_range("top_logprobs", *top, "unset without logprobs"));
    }
    if (request->logprobs) out->set_top_logprobs(*top);
  }
}

// Names of tandem.v1 and of OpenAI. A field in neither table, which the client did not name in
// another way (FieldNames), came from the member "tandem".
struct Renaming {
  absl::string_view ours, completion, chat;
};
constexpr std::array kRenamings = {
    Renaming{"text", "prompt", "messages"},
    Renaming{"token_ids", "prompt", "messages"},
    Renaming{"prompt", "prompt", "messages"},
    Renaming{"chat", "prompt", "messages"},
    Renaming{"chat.tools", "tools", "tools"},
    Renaming{"chat.tool_choice", "tool_choice", "tool_choice"},
    Renaming{"chat.allowed_tools", "tool_choice", "tool_choice"},
    Renaming{"chat.messages", "messages", "messages"},
    Renaming{"chat.template_args", "chat_template_kwargs", "chat_template_kwargs"},
    Renaming{"stop_sequences", "stop", "stop"},
    Renaming{"top_logprobs", "logprobs", "top_logprobs"},
};
constexpr std::array<absl::string_view, 10> kSame = {
    "model",      "temperature", "top_p", "presence_penalty", "frequency_penalty",
    "logit_bias", "seed",        "n",     "logprobs",         "suffix"};

// `field` is `name`, or an element or a member of it: "chat.messages[1].role" of "chat.messages".
bool is_of(absl::string_view field, absl::string_view name) {
  return absl::StartsWith(field, name) &&
         (field.size() == name.size() || field[name.size()] == '[' || field[name.size()] == '.');
}

std::string new_name(absl::string_view field, Kind kind, const FieldNames& names) {
  if (field.empty()) return "";
  for (const auto& [ours, theirs] : names) {
    if (is_of(field, ours)) return absl::StrCat(theirs, field.substr(ours.size()));
  }
  if (field == "max_new_tokens") return "max_tokens";
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
  TANDEM_RETURN_IF_ERROR(check_json_object(body));
  Request out;
  out.kind = kind;
  Violations wrong;
  Fields in(body, "", &wrong);
  if (const auto more = in.of_kind("extra_body", JsonKind::kObject)) in.absorb(*more);
  if (const auto extension = in.of_kind("tandem", JsonKind::kObject)) {
    extension_from(*extension, &out.message, &wrong);
  }
  apply_fields(kind == Kind::kChat ? kChat : kText, &in, &out.message, &out.names, &wrong);
  out.message.set_model(in.string("model").value_or(""));
  sampling_from(&in, &out, &wrong);
  stream_from(&in, &out, &wrong);
  if (kind == Kind::kChat) {
    chat_completion_from(&in, &out, &wrong);
  } else {
    completion_from(&in, &out, &wrong);
  }
  constraint_from(&in, &out.message, &out.names, &wrong);
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

absl::Status renamed(const absl::Status& status, Kind kind, const FieldNames& names) {
  const std::vector<Violation> violations = violations_of(status);
  if (violations.empty()) return status;
  Violations out;
  for (const Violation& v : violations) {
    out.add(wrong_field(new_name(v.field, kind, names), v.description));
  }
  absl::Status out_status = out.status();
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (!out_status.GetPayload(type).has_value())
      out_status.SetPayload(type, payload);  // such as the reason
  });
  return out_status;
}

}  // namespace tandem::openai
