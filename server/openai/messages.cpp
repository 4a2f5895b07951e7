// Anthropic's Messages (POST /v1/messages, version 2023-06-01) as a translation.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

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

// The blocks of a message by kind. Results of tools become messages of their own.
struct Blocks {
  JsonWriter parts{'['};
  JsonWriter calls{'['};
  std::string thinking;
};

void block_from(absl::string_view block, const std::string& path, Blocks* out, JsonWriter* messages,
                Violations* wrong) {
  if (!expect_kind(block, JsonKind::kObject, path, wrong)) return;
  Fields in(block, path + ".", wrong);
  const std::string type = in.string("type").value_or("");
  if (type == "text") {
    out->parts.add(text_block(in.string("text").value_or("")));
  } else if (type == "thinking") {
    out->thinking += in.string("thinking").value_or("");
  } else if (type == "tool_use") {
    JsonWriter function('{');
    function.add("name", json_string(in.string("name").value_or("")));
    function.add("arguments", in.of_kind("input", JsonKind::kObject).value_or("{}"));
    JsonWriter call('{');
    call.add("id", json_string(in.string("id").value_or("")));
    call.add("type", "\"function\"");
    call.add("function", function.text());
    out->calls.add(call.text());
  } else if (type == "tool_result") {
    JsonWriter message('{');
    message.add("role", "\"tool\"");
    message.add("tool_call_id", json_string(in.string("tool_use_id").value_or("")));
    message.add("content", text_content(in.any("content").value_or("\"\""), path + ".content",
                                        {"text"}, "\"text\"", wrong));
    messages->add(message.text());
  } else if (type != "redacted_thinking") {  // which has no text
    wrong->add(out_of_range(path + ".type", "another type",
                            "text, thinking, tool_use, tool_result (others are not supported)"));
  }
}

void anthropic_message_from(absl::string_view object, const std::string& path, JsonWriter* messages,
                            Violations* wrong) {
  if (!expect_kind(object, JsonKind::kObject, path, wrong)) return;
  Fields in(object, path + ".", wrong);
  const std::string role = in.string("role").value_or("");
  if (role != "user" && role != "assistant") {
    wrong->add(out_of_range(path + ".role", "another role", "user, assistant"));
  }
  JsonWriter message('{');
  message.add("role", json_string(role));
  const auto content = in.any("content");
  if (!content.has_value() || kind_of(*content) == JsonKind::kString) {
    message.add("content", content.value_or("\"\""));
    return messages->add(message.text());
  }
  if (!expect_kind(*content, JsonKind::kArray, path + ".content", wrong)) return;
  Blocks blocks;
  int index = 0;
  for (const absl::string_view block : elements_of(*content)) {
    block_from(block, absl::StrCat(path, ".content[", index++, "]"), &blocks, messages, wrong);
  }
  if (role == "user" && blocks.parts.empty() && index > 0) return;  // only results of tools
  message.add("content", blocks.parts.text());
  if (!blocks.calls.empty()) message.add("tool_calls", blocks.calls.text());
  if (!blocks.thinking.empty()) message.add("reasoning_content", json_string(blocks.thinking));
  messages->add(message.text());
}

void anthropic_messages_from(Fields* in, JsonWriter* out, Violations* wrong) {
  JsonWriter messages('[');
  if (const auto system = in->any("system")) {
    JsonWriter message('{');
    message.add("role", "\"system\"");
    message.add("content", text_content(*system, "system", {"text"}, "\"text\"", wrong));
    messages.add(message.text());
  }
  const auto list = in->array("messages");
  if (list.empty()) wrong->add(out_of_range("messages", "none", "at least one"));
  for (size_t i = 0; i < list.size() && !wrong->any(); ++i) {
    anthropic_message_from(list[i], absl::StrCat("messages[", i, "]"), &messages, wrong);
  }
  out->add("messages", messages.text());
}

void anthropic_tool_from(absl::string_view tool, const std::string& path, JsonWriter* tools,
                         Violations* wrong) {
  if (!expect_kind(tool, JsonKind::kObject, path, wrong)) return;
  Fields in(tool, path + ".", wrong);
  const std::string type = in.string("type").value_or("custom");
  if (type != "custom") {
    return wrong->add(
        out_of_range(path + ".type", "another type", "custom or unset (the server runs no tools)"));
  }
  JsonWriter function('{');
  function.add("name", json_string(in.string("name").value_or("")));
  if (const auto text = in.string("description")) function.add("description", json_string(*text));
  function.add("parameters", in.of_kind("input_schema", JsonKind::kObject).value_or("{}"));
  if (const auto strict = in.boolean("strict")) function.add("strict", *strict ? "true" : "false");
  tools->add(tool_of(function));
}

void anthropic_tools_from(Fields* in, JsonWriter* out, Violations* wrong) {
  JsonWriter tools('[');
  const auto list = in->array("tools");
  for (size_t i = 0; i < list.size(); ++i) {
    anthropic_tool_from(list[i], absl::StrCat("tools[", i, "]"), &tools, wrong);
  }
  if (!tools.empty()) out->add("tools", tools.text());
  const auto choice = in->of_kind("tool_choice", JsonKind::kObject);
  if (!choice.has_value()) return;
  Fields fields(*choice, "tool_choice.", wrong);
  const std::string type = fields.string("type").value_or("");
  if (type == "tool") {
    out->add("tool_choice", absl::StrCat("{\"type\":\"function\",\"function\":{\"name\":",
                                         json_string(fields.string("name").value_or("")), "}}"));
  } else if (type == "auto" || type == "any" || type == "none") {
    out->add("tool_choice", type == "any" ? "\"required\"" : json_string(type));
  } else {
    wrong->add(out_of_range("tool_choice.type", "another type", "auto, any, tool, none"));
  }
  if (fields.boolean("disable_parallel_tool_use").value_or(false)) {
    out->add("parallel_tool_calls", "false");
  }
  fields.end();
}

// Models that think are asked by a variable of their template.
void thinking_from(Fields* in, JsonWriter* out, Violations* wrong) {
  const auto thinking = in->of_kind("thinking", JsonKind::kObject);
  if (!thinking.has_value()) return;
  Fields fields(*thinking, "thinking.", wrong);
  if (fields.string("type") != "disabled") {
    return wrong->add(out_of_range("thinking.type", "another type",
                                   "disabled or unset (a budget is not supported)"));
  }
  fields.end();
  out->add("chat_template_kwargs", "{\"enable_thinking\":false}");
}

// --- Answer

std::string stop_reason(const std::string& finish_reason, const std::string& stop_sequence) {
  if (finish_reason == "length") return "max_tokens";
  if (finish_reason == "tool_calls") return "tool_use";
  return stop_sequence.empty() ? "end_turn" : "stop_sequence";
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson message_usage(const json& usage) {
  const int64_t cached = count_of(member_of(usage, "prompt_tokens_details"), "cached_tokens");
  return {{"input_tokens", count_of(usage, "prompt_tokens") - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", count_of(usage, "completion_tokens")}};
}

OrderedJson message_json(const json& chat) {
  return {{"id", id_of(chat, "msg_")},
          {"type", "message"},
          {"role", "assistant"},
          {"model", text_of(chat, "model")},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

// The arguments of a call are an object in a string; a broken one is kept as text.
OrderedJson input_of(const std::string& arguments) {
  OrderedJson input = OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (input.is_object()) return input;
  return arguments.empty() ? OrderedJson::object() : OrderedJson{{"arguments", arguments}};
}

class Messages final : public Translation {
 public:
  absl::StatusOr<std::string> request(const std::string& body) override {
    return chat_request(kMessages, body, "{\"include_usage\":true,\"continuous_usage_stats\":true}",
                        [](Fields* in, JsonWriter* out, Violations* wrong) {
                          anthropic_messages_from(in, out, wrong);
                          anthropic_tools_from(in, out, wrong);
                          thinking_from(in, out, wrong);
                        });
  }

  absl::Status renamed(const absl::Status& status) const override {
    return with_names(status, [](const std::string& field) {
      if (absl::StartsWith(field, "stop")) return "stop_sequences" + field.substr(4);
      return absl::StrReplaceAll(field, {{"].function.parameters", "].input_schema"}});
    });
  }

  std::string answer(const std::string& chat) override {
    const json from = json::parse(chat);
    const json& choice = from["choices"][0];
    const json& message = choice["message"];
    OrderedJson out = message_json(from);
    OrderedJson& content = out["content"];
    if (const std::string text = text_of(message, "reasoning_content"); !text.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", text}, {"signature", ""}});
    }
    if (const std::string text = text_of(message, "content"); !text.empty()) {
      content.push_back({{"type", "text"}, {"text", text}});
    }
    for (const json& call : member_of(message, "tool_calls")) {
      const json& function = member_of(call, "function");
      content.push_back({{"type", "tool_use"},
                         {"id", text_of(call, "id")},
                         {"name", text_of(function, "name")},
                         {"input", input_of(text_of(function, "arguments"))}});
    }
    const std::string sequence = text_of(member_of(from, "tandem"), "stop_sequence");
    out["stop_reason"] = stop_reason(text_of(choice, "finish_reason"), sequence);
    out["stop_sequence"] = text_or_null(sequence);
    out["usage"] = message_usage(member_of(from, "usage"));
    return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

  std::string events(absl::string_view chat_events) override {
    std::string out;
    for_each_event(
        chat_events, [&](const json& data) { on_event(data, &out); }, [&] { on_done(&out); });
    return out;
  }

  std::string error(const std::string& chat, int http_status,
                    const std::string& request_id) const override {
    return messages_error(chat, http_status, request_id);
  }
  std::string error_event(const std::string& chat, int http_status,
                          const std::string& request_id) override {
    return absl::StrCat("event: error\ndata: ", messages_error(chat, http_status, request_id),
                        "\n\n");
  }

 private:
  void on_event(const json& data, std::string* out) {
    if (!begun_) begin(data, out);
    if (const json& usage = member_of(data, "usage"); usage.is_object()) usage_ = usage;
    const json& choices = member_of(data, "choices");
    if (choices.empty()) return;
    const json& delta = member_of(choices[0], "delta");
    if (const std::string text = text_of(delta, "reasoning_content"); !text.empty()) {
      open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
      send_delta({{"type", "thinking_delta"}, {"thinking", text}}, out);
    }
    if (const std::string text = text_of(delta, "content"); !text.empty()) {
      open("text", {{"type", "text"}, {"text", ""}}, out);
      send_delta({{"type", "text_delta"}, {"text", text}}, out);
    }
    for (const json& call : member_of(delta, "tool_calls")) {
      const json& function = member_of(call, "function");
      open(absl::StrCat("call ", count_of(call, "index")),
           {{"type", "tool_use"},
            {"id", text_of(call, "id")},
            {"name", text_of(function, "name")},
            {"input", OrderedJson::object()}},
           out);
      if (const std::string part = text_of(function, "arguments"); !part.empty()) {
        send_delta({{"type", "input_json_delta"}, {"partial_json", part}}, out);
      }
    }
    if (const std::string reason = text_of(choices[0], "finish_reason"); !reason.empty()) {
      finish_reason_ = reason;
      stop_sequence_ = text_of(member_of(data, "tandem"), "stop_sequence");
    }
  }

  void begin(const json& data, std::string* out) {
    begun_ = true;
    OrderedJson message = message_json(data);
    message["usage"] = message_usage(member_of(data, "usage"));
    *out += typed_event({{"type", "message_start"}, {"message", message}});
  }

  // Opens a content block, unless it is open already.
  void open(const std::string& name, const OrderedJson& block, std::string* out) {
    if (open_ == name) return;
    close(out);
    open_ = name;
    *out +=
        typed_event({{"type", "content_block_start"}, {"index", index_}, {"content_block", block}});
  }
  void send_delta(const OrderedJson& delta, std::string* out) const {
    *out += typed_event({{"type", "content_block_delta"}, {"index", index_}, {"delta", delta}});
  }
  void close(std::string* out) {
    if (open_.empty()) return;
    open_.clear();
    *out += typed_event({{"type", "content_block_stop"}, {"index", index_++}});
  }

  void on_done(std::string* out) {
    if (index_ == 0 && open_.empty()) open("text", {{"type", "text"}, {"text", ""}}, out);
    close(out);
    *out += typed_event({{"type", "message_delta"},
                         {"delta",
                          {{"stop_reason", stop_reason(finish_reason_, stop_sequence_)},
                           {"stop_sequence", text_or_null(stop_sequence_)}}},
                         {"usage", message_usage(usage_)}});
    *out += typed_event({{"type", "message_stop"}});
  }

  // Of a stream:
  bool begun_ = false;
  std::string open_;  // the open content block; empty: none
  int index_ = 0;     // of it, or of the next one
  json usage_;
  std::string finish_reason_;
  std::string stop_sequence_;
};

const char* anthropic_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::unique_ptr<Translation> messages_translation() { return std::make_unique<Messages>(); }

std::string messages_error(const std::string& chat, int http_status,
                           const std::string& request_id) {
  const json from = json::parse(chat, nullptr, /*allow_exceptions=*/false);
  OrderedJson out = {{"type", "error"},
                     {"error",
                      {{"type", anthropic_error_type(http_status)},
                       {"message", text_of(member_of(from, "error"), "message")}}}};
  if (!request_id.empty()) out["request_id"] = request_id;
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace tandem::openai
