#include "engine/host/requests/tool_prompt.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;  // models see the order of keys

constexpr char kInstruction[] =
    "You can call functions. To call one, answer with a JSON object only: "
    "{\"name\": FUNCTION, \"parameters\": {...}}. These are the functions:\n";

// The library writes values recursively. The template engine has the same limit and reports it.
constexpr int kMaxNesting = 64;

bool is_shallow(const std::string& json) {
  int depth = 0;
  bool in_string = false, escaped = false;
  for (const char c : json) {
    if (escaped) {
      escaped = false;
    } else if (in_string) {
      escaped = c == '\\';
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxNesting) return false;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return true;
}

std::string text_of(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : "";
}

std::string role_of(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() ? role->get<std::string>() : "";
}

// {"type": "function", "function": {...}} -> {...}
const Json& function_of(const Json& tool) {
  const auto function = tool.is_object() ? tool.find("function") : tool.end();
  return tool.is_object() && function != tool.end() && function->is_object() ? *function : tool;
}

// The calls of a message: [{"name": ..., KEY: {...}}]
Json calls_of(const Json& message, const char* key) {
  Json out = Json::array();
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return out;
  for (const Json& call : *calls) {
    const Json& function = function_of(call);
    if (!function.is_object()) continue;
    out.push_back({{"name", function.value("name", Json(""))},
                   {key, function.value("arguments", Json::object())}});
  }
  return out;
}

void add_to_content(const std::string& text, Json* message) {
  const std::string before = text_of(*message);
  (*message)["content"] = before.empty() ? text : absl::StrCat(before, "\n", text);
}

// The system message, which is made if there is none.
Json& system_of(Json* messages) {
  if (messages->empty() || role_of(messages->front()) != "system") {
    messages->insert(messages->begin(), Json{{"role", "system"}, {"content", ""}});
  }
  return messages->front();
}

void write_phi4(const Json& functions, Json* messages) {
  for (Json& message : *messages) {
    const Json calls = calls_of(message, "arguments");
    if (calls.empty()) continue;
    add_to_content(absl::StrCat("<|tool_call|>", calls.dump(), "<|/tool_call|>"), &message);
  }
  if (!functions.empty()) system_of(messages)["tools"] = functions.dump();
}

void write_gemma(const Json& functions, Json* messages) {
  Json out = Json::array();
  for (Json& message : *messages) {
    for (const Json& call : calls_of(message, "parameters")) add_to_content(call.dump(), &message);
    message.erase("tool_calls");
    if (role_of(message) != "tool") {
      out.push_back(std::move(message));
      continue;
    }
    // Turns alternate, so results of one turn are one message.
    const bool follows = !out.empty() && out.back().contains("is_result");
    if (!follows) out.push_back({{"role", "user"}, {"content", ""}, {"is_result", true}});
    add_to_content(absl::StrCat("Result: ", text_of(message)), &out.back());
  }
  for (Json& message : out) message.erase("is_result");
  *messages = std::move(out);
  if (functions.empty()) return;
  add_to_content(absl::StrCat(kInstruction, functions.dump(1)), &system_of(messages));
}

}  // namespace

ChatPrompt with_tools_in_messages(ChatPrompt chat, const std::string& source, ToolFormat format) {
  const bool phi4 = format == ToolFormat::kPhi4 && absl::StrContains(source, "message['tools']");
  const bool gemma = format == ToolFormat::kGemma && !absl::StrContains(source, "tools");
  const bool has_calls = absl::StrContains(chat.messages_json, "\"tool_calls\"");
  if ((!phi4 && !gemma) || (chat.tools_json.empty() && !has_calls)) return chat;
  if (!is_shallow(chat.messages_json) || !is_shallow(chat.tools_json)) return chat;
  Json messages = Json::parse(chat.messages_json, nullptr, /*allow_exceptions=*/false);
  if (!messages.is_array()) return chat;  // the template reports it
  for (const Json& message : messages) {
    if (!message.is_object()) return chat;
  }
  Json functions = Json::array();
  if (!chat.tools_json.empty()) {
    for (const Json& tool : Json::parse(chat.tools_json, nullptr, false)) {
      functions.push_back(function_of(tool));
    }
  }
  if (phi4) {
    write_phi4(functions, &messages);
  } else {
    write_gemma(functions, &messages);
  }
  chat.messages_json = messages.dump();
  chat.tools_json.clear();
  return chat;
}

}  // namespace tandem
