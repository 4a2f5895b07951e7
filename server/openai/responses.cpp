// OpenAI's Responses (POST /v1/responses), without stored state, as a translation.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status.h"
#include "server/openai/field_table.h"
#include "server/openai/translation.h"
#include "server/openai/translation_parts.h"

namespace tandem::openai {
namespace {

using nlohmann::json;

// --- Request

std::string content_of(absl::string_view content, const std::string& path, Violations* wrong) {
  return text_content(content, path, {"input_text", "output_text", "text"},
                      "input_text, output_text (others are not supported)", wrong);
}

std::string call_message(Fields* in) {
  JsonWriter function('{');
  function.add("name", json_string(in->string("name").value_or("")));
  function.add("arguments", json_string(in->string("arguments").value_or("")));
  JsonWriter call('{');
  call.add("id", json_string(in->string("call_id").value_or("")));
  call.add("type", "\"function\"");
  call.add("function", function.text());
  return call.text();
}

// Calls of tools that follow each other are one message.
class Input {
 public:
  explicit Input(Violations* wrong) : wrong_(*wrong) {}

  void add_text(absl::string_view role, absl::string_view content) {
    end_calls();
    JsonWriter message('{');
    message.add("role", json_string(role));
    message.add("content", content);
    messages_.add(message.text());
  }

  void add_item(absl::string_view item, const std::string& path) {
    if (!expect_kind(item, JsonKind::kObject, path, &wrong_)) return;
    Fields in(item, path + ".", &wrong_);
    const std::string type = in.string("type").value_or("message");
    if (type == "message") {
      const auto content = in.any("content");
      add_text(in.string("role").value_or(""),
               content_of(content.value_or("\"\""), path + ".content", &wrong_));
    } else if (type == "function_call") {
      calls_.add(call_message(&in));
    } else if (type == "function_call_output") {
      end_calls();
      JsonWriter message('{');
      message.add("role", "\"tool\"");
      message.add("tool_call_id", json_string(in.string("call_id").value_or("")));
      message.add("content",
                  content_of(in.any("output").value_or("\"\""), path + ".output", &wrong_));
      messages_.add(message.text());
    } else if (type != "reasoning") {  // of earlier answers
      wrong_.add(out_of_range(path + ".type", "another type",
                              "message, function_call, function_call_output, reasoning (others "
                              "are not supported)"));
    }
  }

  std::string messages() {
    end_calls();
    return messages_.text();
  }

 private:
  void end_calls() {
    if (calls_.empty()) return;
    JsonWriter message('{');
    message.add("role", "\"assistant\"");
    message.add("content", "null");
    message.add("tool_calls", std::exchange(calls_, JsonWriter('[')).text());
    messages_.add(message.text());
  }

  Violations& wrong_;
  JsonWriter messages_{'['};
  JsonWriter calls_{'['};
};

void input_from(Fields* in, JsonWriter* out, Violations* wrong) {
  Input input(wrong);
  if (const auto text = in->string("instructions")) input.add_text("system", json_string(*text));
  const auto given = in->any("input");
  if (!given.has_value()) {
    wrong->add(out_of_range("input", "none", "a string or an array of items"));
  } else if (kind_of(*given) == JsonKind::kString) {
    input.add_text("user", *given);
  } else if (expect_kind(*given, JsonKind::kArray, "input", wrong)) {
    int index = 0;
    for (const absl::string_view item : elements_of(*given)) {
      if (wrong->any()) break;
      input.add_item(item, absl::StrCat("input[", index++, "]"));
    }
  }
  out->add("messages", input.messages());
}

void response_tools_from(Fields* in, JsonWriter* out, Violations* wrong) {
  JsonWriter tools('[');
  int index = 0;
  for (const absl::string_view tool : in->array("tools")) {
    const std::string path = absl::StrCat("tools[", index++, "]");
    if (!expect_kind(tool, JsonKind::kObject, path, wrong)) return;
    Fields fields(tool, path + ".", wrong);
    if (fields.string("type") != "function") {
      return wrong->add(
          out_of_range(path + ".type", "another type", "function (the server runs no tools)"));
    }
    JsonWriter function('{');
    for (const char* const name : {"name", "description", "parameters", "strict"}) {
      if (const auto value = fields.any(name)) function.add(name, *value);
    }
    tools.add(tool_of(function));
  }
  if (!tools.empty()) out->add("tools", tools.text());
  const auto choice = in->any("tool_choice");
  if (!choice.has_value()) return;
  if (kind_of(*choice) != JsonKind::kObject) return out->add("tool_choice", *choice);
  Fields fields(*choice, "tool_choice.", wrong);
  if (fields.string("type") != "function") {
    return wrong->add(out_of_range("tool_choice.type", "another type", "function"));
  }
  out->add("tool_choice", absl::StrCat("{\"type\":\"function\",\"function\":{\"name\":",
                                       json_string(fields.string("name").value_or("")), "}}"));
}

// {"format": {"type": "json_schema", "name", "schema", "strict"}} -> response_format.
void format_from(Fields* in, JsonWriter* out, Violations* wrong) {
  const auto text = in->of_kind("text", JsonKind::kObject);
  if (!text.has_value()) return;
  Fields fields(*text, "text.", wrong);
  fields.only("verbosity", "\"medium\"");
  const auto format = fields.of_kind("format", JsonKind::kObject);
  fields.end();
  if (!format.has_value()) return;
  Fields of_format(*format, "text.format.", wrong);
  const std::string type = of_format.string("type").value_or("");
  JsonWriter response_format('{');
  response_format.add("type", json_string(type));
  if (type == "json_schema") {
    JsonWriter schema('{');
    for (const char* const name : {"name", "description", "schema", "strict"}) {
      if (const auto value = of_format.any(name)) schema.add(name, *value);
    }
    response_format.add("json_schema", schema.text());
  }
  of_format.end();
  if (type != "text") out->add("response_format", response_format.text());
}

void reasoning_from(Fields* in, JsonWriter* out, Violations* wrong) {
  const auto reasoning = in->of_kind("reasoning", JsonKind::kObject);
  if (!reasoning.has_value()) return;
  Fields fields(*reasoning, "reasoning.", wrong);
  if (const auto effort = fields.any("effort")) out->add("reasoning_effort", *effort);
  for (const char* const name : {"summary", "generate_summary"}) fields.ignore(name);
  fields.end();
}

// --- Answer

OrderedJson response_usage(const json& usage) {
  const json& prompt = member_of(usage, "prompt_tokens_details");
  const json& completion = member_of(usage, "completion_tokens_details");
  return {
      {"input_tokens", count_of(usage, "prompt_tokens")},
      {"input_tokens_details", {{"cached_tokens", count_of(prompt, "cached_tokens")}}},
      {"output_tokens", count_of(usage, "completion_tokens")},
      {"output_tokens_details", {{"reasoning_tokens", count_of(completion, "reasoning_tokens")}}},
      {"total_tokens", count_of(usage, "total_tokens")}};
}

OrderedJson output_text(const std::string& text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", OrderedJson::array()}};
}

// An output item that is being written, or complete.
struct Item {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id, text, call_id, name;  // `text`: the arguments of a call

  OrderedJson to_json(bool complete) const {
    const char* const status = complete ? "completed" : "in_progress";
    switch (kind) {
      case Kind::kReasoning: {
        OrderedJson content = OrderedJson::array();
        if (complete) content.push_back({{"type", "reasoning_text"}, {"text", text}});
        return {{"type", "reasoning"},
                {"id", id},
                {"summary", OrderedJson::array()},
                {"content", content}};
      }
      case Kind::kMessage: {
        OrderedJson content = OrderedJson::array();
        if (complete) content.push_back(output_text(text));
        return {{"type", "message"},
                {"id", id},
                {"status", status},
                {"role", "assistant"},
                {"content", content}};
      }
      case Kind::kCall:
        break;
    }
    return {{"type", "function_call"}, {"id", id},        {"call_id", call_id}, {"name", name},
            {"arguments", text},       {"status", status}};
  }
};

class Responses final : public Translation {
 public:
  absl::StatusOr<std::string> request(const std::string& body) override {
    return chat_request(kResponses, body, "{\"include_usage\":true}",
                        [](Fields* in, JsonWriter* out, Violations* wrong) {
                          input_from(in, out, wrong);
                          response_tools_from(in, out, wrong);
                          format_from(in, out, wrong);
                          reasoning_from(in, out, wrong);
                        });
  }

  absl::Status renamed(const absl::Status& status) const override {
    return with_names(status, [](const std::string& field) -> std::string {
      if (absl::StartsWith(field, "max_tokens")) return "max_output_tokens";
      if (field == "messages") return "input";
      if (field == "reasoning_effort") return "reasoning.effort";
      if (absl::StartsWith(field, "response_format")) return "text.format";
      return absl::StrReplaceAll(field, {{"].function.parameters", "].parameters"}});
    });
  }

  std::string answer(const std::string& chat) override {
    const json from = json::parse(chat);
    begin(from);
    const json& choice = from["choices"][0];
    const json& message = choice["message"];
    if (const std::string text = text_of(message, "reasoning_content"); !text.empty()) {
      open(Item::Kind::kReasoning).text = text;
    }
    const json& calls = member_of(message, "tool_calls");
    const std::string text = text_of(message, "content");
    if (!text.empty() || calls.empty()) open(Item::Kind::kMessage).text = text;
    for (const json& call : calls) {
      const json& function = member_of(call, "function");
      Item& item = open(Item::Kind::kCall);
      item.call_id = text_of(call, "id");
      item.name = text_of(function, "name");
      item.text = text_of(function, "arguments");
    }
    finish_reason_ = text_of(choice, "finish_reason");
    usage_ = member_of(from, "usage");
    return response(/*complete=*/true).dump(-1, ' ', false, kReplace);
  }

  std::string events(absl::string_view chat_events) override {
    std::string out;
    for_each_event(
        chat_events, [&](const json& data) { on_event(data, &out); }, [&] { on_done(&out); });
    return out;
  }

  std::string error(const std::string& chat, int /*http_status*/,
                    const std::string& /*request_id*/) const override {
    return chat;  // OpenAI's form
  }
  std::string error_event(const std::string& chat, int /*http_status*/,
                          const std::string& /*request_id*/) override {
    const json from = json::parse(chat);
    const json& error = member_of(from, "error");
    std::string out;
    send({{"type", "error"},
          {"code", member_of(error, "code")},
          {"message", text_of(error, "message")},
          {"param", member_of(error, "param")}},
         &out);
    return out;
  }

 private:
  static constexpr auto kReplace = OrderedJson::error_handler_t::replace;

  void begin(const json& chat) {
    begun_ = true;
    id_ = id_of(chat, "resp_");
    created_ = count_of(chat, "created");
    model_ = text_of(chat, "model");
  }

  Item& open(Item::Kind kind) {
    Item item;
    item.kind = kind;
    const char* const prefix = kind == Item::Kind::kMessage ? "msg_"
                               : kind == Item::Kind::kCall  ? "fc_"
                                                            : "rs_";
    item.id = absl::StrCat(prefix, absl::string_view(id_).substr(5), "_", items_.size());
    return items_.emplace_back(std::move(item));
  }

  OrderedJson response(bool complete) const {
    const bool cut = finish_reason_ == "length";
    OrderedJson output = OrderedJson::array();
    if (complete) {
      for (const Item& item : items_) output.push_back(item.to_json(/*complete=*/true));
      if (cut && !output.empty() && output.back().contains("status")) {
        output.back()["status"] = "incomplete";
      }
    }
    OrderedJson out = {{"id", id_},
                       {"object", "response"},
                       {"created_at", created_},
                       {"status", !complete ? "in_progress"
                                  : cut     ? "incomplete"
                                            : "completed"},
                       {"error", nullptr},
                       {"incomplete_details", nullptr},
                       {"instructions", nullptr},
                       {"model", model_},
                       {"output", output},
                       {"parallel_tool_calls", true},
                       {"previous_response_id", nullptr},
                       {"store", false},
                       {"text", {{"format", {{"type", "text"}}}}},
                       {"tool_choice", "auto"},
                       {"tools", OrderedJson::array()},
                       {"truncation", "disabled"},
                       {"metadata", OrderedJson::object()},
                       {"usage", complete ? response_usage(usage_) : OrderedJson()}};
    if (complete && cut) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    return out;
  }

  // --- Streams

  void send(OrderedJson event, std::string* out) {
    event["sequence_number"] = sequence_++;
    *out += typed_event(event);
  }

  // An event about the last item. Parts of calls have no content index.
  OrderedJson about_item(const char* type) const {
    OrderedJson event = {
        {"type", type}, {"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
    if (items_.back().kind != Item::Kind::kCall) event["content_index"] = 0;
    return event;
  }

  void on_event(const json& data, std::string* out) {
    if (!begun_) {
      begin(data);
      send({{"type", "response.created"}, {"response", response(false)}}, out);
      send({{"type", "response.in_progress"}, {"response", response(false)}}, out);
    }
    if (const json& usage = member_of(data, "usage"); usage.is_object()) usage_ = usage;
    const json& choices = member_of(data, "choices");
    if (choices.empty()) return;
    const json& delta = member_of(choices[0], "delta");
    if (const std::string text = text_of(delta, "reasoning_content"); !text.empty()) {
      continue_item(Item::Kind::kReasoning, "", out);
      add(text, "response.reasoning_text.delta", out);
    }
    if (const std::string text = text_of(delta, "content"); !text.empty()) {
      continue_item(Item::Kind::kMessage, "", out);
      add(text, "response.output_text.delta", out);
    }
    for (const json& call : member_of(delta, "tool_calls")) {
      const json& function = member_of(call, "function");
      const std::string key = absl::StrCat(count_of(call, "index"));
      if (!is_open_ || open_key_ != key) {
        close(out);
        Item& item = open(Item::Kind::kCall);
        item.call_id = text_of(call, "id");
        item.name = text_of(function, "name");
        announce(key, out);
      }
      if (const std::string part = text_of(function, "arguments"); !part.empty()) {
        add(part, "response.function_call_arguments.delta", out);
      }
    }
    if (const std::string reason = text_of(choices[0], "finish_reason"); !reason.empty()) {
      finish_reason_ = reason;
    }
  }

  void continue_item(Item::Kind kind, const std::string& key, std::string* out) {
    if (is_open_ && items_.back().kind == kind) return;
    close(out);
    open(kind);
    announce(key, out);
  }

  void announce(const std::string& key, std::string* out) {
    is_open_ = true;
    open_key_ = key;
    const Item& item = items_.back();
    send({{"type", "response.output_item.added"},
          {"output_index", items_.size() - 1},
          {"item", item.to_json(/*complete=*/false)}},
         out);
    if (item.kind != Item::Kind::kMessage) return;
    OrderedJson event = about_item("response.content_part.added");
    event["part"] = output_text("");
    send(std::move(event), out);
  }

  void add(const std::string& text, const char* type, std::string* out) {
    items_.back().text += text;
    OrderedJson event = about_item(type);
    event["delta"] = text;
    if (items_.back().kind == Item::Kind::kMessage) event["logprobs"] = OrderedJson::array();
    send(std::move(event), out);
  }

  void close(std::string* out) {
    if (!std::exchange(is_open_, false)) return;
    const Item& item = items_.back();
    switch (item.kind) {
      case Item::Kind::kReasoning: {
        OrderedJson event = about_item("response.reasoning_text.done");
        event["text"] = item.text;
        send(std::move(event), out);
        break;
      }
      case Item::Kind::kMessage: {
        OrderedJson event = about_item("response.output_text.done");
        event["text"] = item.text;
        event["logprobs"] = OrderedJson::array();
        send(std::move(event), out);
        event = about_item("response.content_part.done");
        event["part"] = output_text(item.text);
        send(std::move(event), out);
        break;
      }
      case Item::Kind::kCall: {
        OrderedJson event = about_item("response.function_call_arguments.done");
        event["name"] = item.name;
        event["arguments"] = item.text;
        send(std::move(event), out);
        break;
      }
    }
    send({{"type", "response.output_item.done"},
          {"output_index", items_.size() - 1},
          {"item", item.to_json(/*complete=*/true)}},
         out);
  }

  void on_done(std::string* out) {
    if (items_.empty()) continue_item(Item::Kind::kMessage, "", out);
    close(out);
    const bool cut = finish_reason_ == "length";
    send({{"type", cut ? "response.incomplete" : "response.completed"},
          {"response", response(/*complete=*/true)}},
         out);
  }

  bool begun_ = false;
  std::string id_, model_;
  int64_t created_ = 0;
  std::vector<Item> items_;
  std::string finish_reason_;
  json usage_;
  int64_t sequence_ = 0;
  bool is_open_ = false;  // the last item
  std::string open_key_;  // the index of the open call
};

}  // namespace

std::unique_ptr<Translation> responses_translation() { return std::make_unique<Responses>(); }

}  // namespace tandem::openai
