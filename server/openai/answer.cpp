#include "server/openai/answer.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

// "METHOD_BILD" -> "bild"
std::string word(const std::string& name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

const char* reason(const v1::Finished& finished) {
  switch (finished.finish_reason()) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_TIME_LIMIT:
      return "\"length\"";
    default:
      return finished.tool_calls() > 0 ? "\"tool_calls\"" : "\"stop\"";
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
      finished.stop_sequence().empty()
          ? ""
          : absl::StrCat(",\"stop_sequence\":", json_string(finished.stop_sequence())),
      satisfied, "}");
}

// The members after the choices of the last part of a response.
std::string usage_members(const UsageTotal& usage) {
  const std::string metrics = usage.metrics_json();
  return absl::StrCat(",\"usage\":", usage.json(), metrics.empty() ? "" : ",\"metrics\":", metrics);
}

// The member "message". `text`: as JSON, or empty.
void append_message(const std::string& text, AnswerDelta more, std::string* out) {
  keep_valid_calls(&more.calls);
  const bool no_text = text.empty() || text == "\"\"";
  const char* const nothing = more.calls.empty() ? "\"\"" : "null";
  absl::StrAppend(out,
                  ",\"message\":{\"role\":\"assistant\",\"content\":", no_text ? nothing : text);
  if (!more.reasoning.empty()) {
    absl::StrAppend(out, ",\"reasoning_content\":", json_string(more.reasoning));
  }
  if (!more.calls.empty()) {
    absl::StrAppend(out, ",\"tool_calls\":", tool_calls_json(more.calls, /*deltas=*/false));
  }
  *out += ",\"refusal\":null}";
}

// The member "delta".
void append_delta(absl::string_view text, const AnswerDelta& more, std::string* out) {
  *out += ",\"delta\":{";
  const char* comma = "";
  if (!more.reasoning.empty()) {
    absl::StrAppend(out, "\"reasoning_content\":", json_string(more.reasoning));
    comma = ",";
  }
  if (!text.empty() || more.empty()) {
    absl::StrAppend(out, std::exchange(comma, ","), "\"content\":");
    append_json_string(text, out);
  }
  if (!more.calls.empty()) {
    absl::StrAppend(out, comma, "\"tool_calls\":", tool_calls_json(more.calls, /*deltas=*/true));
  }
  *out += "}";
}

// Members by their proto names.
std::string members_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string all;
  // Fails only for text that is not UTF-8; names are UTF-8.
  if (!google::protobuf::util::MessageToJsonString(message, &all, options).ok()) all = "{}";
  return all;
}

// The members of a model object. `parent`: JSON.
std::string model_object(const std::string& id, const std::string& root, const std::string& parent,
                         const google::protobuf::Message& details, int64_t created) {
  return absl::StrCat("{\"id\":", json_string(id), ",\"object\":\"model\",\"created\":", created,
                      ",\"owned_by\":\"tandem\",\"root\":", json_string(root),
                      ",\"parent\":", parent, ",\"tandem\":", members_json(details), "}");
}

std::string full_name(const v1::Model& parent, const v1::Adapter& adapter) {
  return absl::StrCat(parent.name(), ":", adapter.name());
}

std::string trace_json(const v1::Trace& trace) {
  std::string out = "{\"passes\":[";
  const char* comma = "";
  for (const v1::PassRecord& p : trace.passes()) {
    absl::StrAppend(&out, std::exchange(comma, ","), "{\"pass\":", p.pass_number(),
                    ",\"start_us\":", p.start_us(), ",\"end_us\":", p.end_us(), ",\"role\":\"",
                    word(v1::PassRole_Name(p.role()), "PASS_ROLE_"), "\",\"kind\":\"",
                    word(v1::PassKind_Name(p.kind()), "PASS_KIND_"), "\",\"rows\":", p.rows());
    absl::StrAppend(&out, ",\"batches\":", p.batches(), ",\"batch_rows\":", p.batch_rows(),
                    ",\"batch_requests\":", p.batch_requests(), ",\"accepted\":", p.accepted(),
                    ",\"rejected\":", p.rejected(), "}");
  }
  return absl::StrCat(out, "],\"omitted\":", trace.omitted(), "}");
}

}  // namespace

// --- ChoiceDetails

void ChoiceDetails::add(const v1::Token& token) {
  if (!tokens_ || token.pass_number() == 0) return;
  absl::StrAppend(&list_, list_.empty() ? "" : ",", "{\"id\":", token.id(), ",\"text\":");
  append_json_string(token.text(), &list_);
  absl::StrAppend(&list_, ",\"proposed\":\"", word(v1::Source_Name(token.proposed()), "SOURCE_"),
                  "\",\"confirmed\":\"", word(v1::Source_Name(token.confirmed()), "SOURCE_"),
                  "\",\"corrected\":", token.corrected() ? "true" : "false",
                  ",\"pass\":", token.pass_number());
  if (token.has_proposed_index()) absl::StrAppend(&list_, ",\"index\":", token.proposed_index());
  if (token.has_logprob()) {
    list_ += ",\"logprob\":";
    append_logprob(token.logprob(), &list_);
  }
  if (token.bytes() != token.text()) {
    list_ += ",\"bytes\":";
    append_bytes(token.bytes(), &list_);
  }
  list_ += "}";
}

void ChoiceDetails::add(const v1::Finished& event) {
  if (!tokens_ && !trace_) return;
  end_ = absl::StrCat("\"stats\":", members_json(event.stats()));
  if (trace_) absl::StrAppend(&end_, ",\"trace\":", trace_json(event.trace()));
}

void ChoiceDetails::append_to(std::string* out) const {
  if (list_.empty() && end_.empty()) return;
  *out += ",\"tandem\":{";
  if (!list_.empty()) absl::StrAppend(out, "\"tokens\":[", list_, end_.empty() ? "]" : "],");
  absl::StrAppend(out, end_, "}");
}

// --- Answer

Answer::Answer(Head head, int choices)
    : head_(std::move(head)),
      choices_(static_cast<size_t>(choices),
               Choice{"", Logprobs(head_.kind), ChoiceDetails(head_)}) {}

void Answer::echo(int index, absl::string_view text, const std::vector<v1::Token>& tokens) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  bytes_ -= choice.text.size() + choice.logprobs.bytes();
  if (!choice.text.empty()) choice.text.pop_back();  // the quotation mark
  const size_t end = choice.text.size();
  append_json_string(text, &choice.text);
  if (end > 0) choice.text.erase(end, 1);
  if (head_.logprobs) {
    for (const v1::Token& token : tokens) choice.logprobs.add(token);
  }
  bytes_ += choice.text.size() + choice.logprobs.bytes();
}

void Answer::chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens,
                   const AnswerDelta& more) {
  echo(index, text, tokens);
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.more.append(more);
  bytes_ += more.bytes();
  choice.tokens += static_cast<int64_t>(tokens.size());
  bytes_ -= choice.details.bytes();
  for (const v1::Token& token : tokens) choice.details.add(token);
  bytes_ += choice.details.bytes();
  for (const v1::Token& token : tokens)
    choice.total_logprob += static_cast<double>(token.logprob());
}

void Answer::finished(const v1::Finished& event) {
  Choice& choice = choices_[static_cast<size_t>(event.index())];
  bytes_ -= choice.details.bytes();
  choice.details.add(event);
  bytes_ += choice.details.bytes();
  choice.finished = event;
  choice.finished.clear_trace();
}

std::vector<const Answer::Choice*> Answer::returned() const {
  std::vector<const Choice*> out;
  const auto per_prompt = static_cast<size_t>(head_.per_prompt);
  const auto kept = head_.best == 0 ? per_prompt : static_cast<size_t>(head_.best);
  for (size_t first = 0; first < choices_.size(); first += per_prompt) {
    std::vector<const Choice*> of_prompt;
    for (size_t i = 0; i < per_prompt; ++i) of_prompt.push_back(&choices_[first + i]);
    if (kept < per_prompt) {
      std::sort(of_prompt.begin(), of_prompt.end(), [](const Choice* a, const Choice* b) {
        const double left = a->mean_logprob(), right = b->mean_logprob();
        return left > right || (left == right && a < b);
      });
    }
    out.insert(out.end(), of_prompt.begin(), of_prompt.begin() + static_cast<ptrdiff_t>(kept));
  }
  return out;
}

std::string Answer::json() const {
  const bool chat = head_.kind == Kind::kChat;
  std::string out = opening(head_, /*stream=*/false);
  out.reserve(out.size() + bytes_ + 512 * choices_.size());
  UsageTotal usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.add(choices_[i].finished, i % static_cast<size_t>(head_.per_prompt) == 0);
  }
  const char* comma = "";
  int index = 0;
  for (const Choice* const choice : returned()) {
    absl::StrAppend(&out, std::exchange(comma, ","), "{\"index\":", index++);
    if (chat) {
      append_message(choice->text, choice->more, &out);
    } else {
      absl::StrAppend(&out, ",\"text\":", choice->text.empty() ? "\"\"" : choice->text);
    }
    out += ",\"logprobs\":";
    if (head_.logprobs) {
      choice->logprobs.append_to(&out);
    } else {
      out += "null";
    }
    absl::StrAppend(&out, ",\"finish_reason\":", reason(choice->finished));
    choice->details.append_to(&out);
    out += "}";
  }
  v1::Finished first = choices_[0].finished;  // and whether all choices satisfy the constraint
  for (const Choice& choice : choices_) {
    if (!choice.finished.has_constraint_satisfied()) continue;
    first.set_constraint_satisfied(first.constraint_satisfied() &&
                                   choice.finished.constraint_satisfied());
  }
  absl::StrAppend(&out, "]", usage_members(usage), ",\"tandem\":", tandem_json(started_, first),
                  "}");
  return out;
}

// --- Events

Events::Events(Head head, int choices, bool include_usage, bool usage_so_far)
    : head_(std::move(head)),
      include_usage_(include_usage),
      usage_so_far_(usage_so_far),
      opening_("data: " + opening(head_, /*stream=*/true)),
      started_(static_cast<size_t>(choices / head_.per_prompt)),
      choices_(static_cast<size_t>(choices), Choice(head_.kind)) {}

// The end of an event of a choice with this number of tokens so far, after "]".
std::string Events::ending(int index, int64_t tokens) const {
  if (!usage_so_far_) return include_usage_ ? ",\"usage\":null}\n\n" : "}\n\n";
  const int64_t prompt = started_[prompt_of(index)].prompt_tokens();
  return absl::StrCat(",\"usage\":{\"prompt_tokens\":", prompt, ",\"completion_tokens\":", tokens,
                      ",\"total_tokens\":", prompt + tokens, "}}\n\n");
}

std::string Events::started(const v1::Started& event, int prompt) {
  started_[static_cast<size_t>(prompt)] = event;
  std::string out;
  for (int i = 0; head_.kind == Kind::kChat && i < head_.per_prompt; ++i) {
    const int index = prompt * head_.per_prompt + i;
    absl::StrAppend(&out, opening_, "{\"index\":", index,
                    ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
                    "\"logprobs\":null,\"finish_reason\":null}]",
                    ending(index, 0));
  }
  return out;
}

std::string Events::chunk(int index, absl::string_view text, const std::vector<v1::Token>& tokens,
                          int64_t count, const AnswerDelta& more) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.tokens += count;
  std::string out;
  out.reserve(opening_.size() + text.size() + more.bytes() + 128);
  absl::StrAppend(&out, opening_, "{\"index\":", index);
  if (head_.kind == Kind::kChat) {
    append_delta(text, more, &out);
  } else {
    out += ",\"text\":";
    append_json_string(text, &out);
  }
  out += ",\"logprobs\":";
  if (head_.logprobs) {
    for (const v1::Token& token : tokens) choice.logprobs.add(token);
    choice.logprobs.append_to(&out);
    choice.logprobs.clear();
  } else {
    out += "null";
  }
  out += ",\"finish_reason\":null";
  ChoiceDetails details(head_);
  for (const v1::Token& token : tokens) details.add(token);
  details.append_to(&out);
  absl::StrAppend(&out, "}]", ending(index, choice.tokens));
  return out;
}

std::string Events::finished(const v1::Finished& event) {
  const int index = event.index();
  usage_.add(event, index % head_.per_prompt == 0);
  ChoiceDetails details(head_);
  details.add(event);
  std::string in_choice;
  details.append_to(&in_choice);
  return absl::StrCat(opening_, "{\"index\":", index,
                      head_.kind == Kind::kChat ? ",\"delta\":{}" : ",\"text\":\"\"",
                      ",\"logprobs\":null,\"finish_reason\":", reason(event), in_choice,
                      "}],\"tandem\":", tandem_json(started_[prompt_of(index)], event),
                      ending(index, event.usage().completion_tokens()));
}

std::string Events::end() const {
  std::string done = "data: [DONE]\n\n";
  if (!include_usage_) return done;
  return absl::StrCat(opening_, "]", usage_members(usage_), "}\n\n", done);
}

std::string Events::error(const std::string& json) { return absl::StrCat("data: ", json, "\n\n"); }

std::string model_json(const v1::Model& model, int64_t created) {
  return model_object(model.name(), model.name(), "null", model, created);
}

std::string adapter_json(const std::string& id, const v1::Model& parent, const v1::Adapter& adapter,
                         int64_t created) {
  v1::Model details = parent;
  details.set_name(id);
  details.clear_adapters();
  *details.add_adapters() = adapter;
  details.clear_methods();
  for (const v1::OfferedMethod& method : parent.methods()) {
    if (!method.refuses_adapters()) *details.add_methods() = method;
    if (method.method() != parent.default_method() || !method.refuses_adapters()) continue;
    details.set_default_method(v1::METHOD_AUTOREGRESSIVE);
  }
  return model_object(id, full_name(parent, adapter), json_string(parent.name()), details, created);
}

std::string models_json(const std::vector<v1::Model>& models, int64_t created) {
  std::map<std::string, int> owners;
  for (const v1::Model& model : models) {
    for (const v1::Adapter& adapter : model.adapters()) ++owners[adapter.name()];
  }
  std::vector<std::string> all;
  for (const v1::Model& model : models) {
    all.push_back(model_json(model, created));
    for (const v1::Adapter& adapter : model.adapters()) {
      const bool known = owners.at(adapter.name()) == 1;
      all.push_back(adapter_json(known ? adapter.name() : full_name(model, adapter), model, adapter,
                                 created));
    }
  }
  return absl::StrCat("{\"object\":\"list\",\"data\":[", absl::StrJoin(all, ","), "]}");
}

}  // namespace tandem::openai
