#include "server/grpc/chat_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

constexpr int kMaxMessages = 4096;
constexpr int kMaxTools = 1024;
// Of all JSON objects together, because they are parsed on the thread that accepts calls.
constexpr size_t kMaxJsonBytes = 256 << 10;

// Does not recurse, so deep nesting is harmless here. The template engine limits it.
bool check_object(absl::string_view field, const std::string& text, Violations* wrong) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  if (!trimmed.empty() && trimmed.front() == '{' && nlohmann::json::accept(text)) return true;
  wrong->add(out_of_range(field, absl::StrCat("not a JSON object (", text.size(), " bytes)"),
                          "a JSON object"));
  return false;
}

// REQUIRES: `text` is valid UTF-8, which protobuf ensures.
std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

// The members of an object, without its braces.
absl::string_view members_of(absl::string_view object) {
  object = absl::StripAsciiWhitespace(object);
  return absl::StripAsciiWhitespace(object.substr(1, object.size() - 2));
}

std::string message_json(const v1::ChatMessage& in, const std::string& field, Violations* wrong) {
  if (in.role().empty()) {
    wrong->add(out_of_range(
        absl::StrCat(field, ".role"), "\"\"",
        "\"system\", \"user\", \"assistant\", \"tool\" or another role of the template"));
  }
  std::string out = absl::StrCat("{\"role\":", json_string(in.role()),
                                 ",\"content\":", json_string(in.content()));
  if (!in.name().empty()) absl::StrAppend(&out, ",\"name\":", json_string(in.name()));
  if (!in.tool_calls().empty()) {
    for (int i = 0; i < in.tool_calls_size(); ++i) {
      check_object(absl::StrCat(field, ".tool_calls[", i, "]"), in.tool_calls(i), wrong);
    }
    absl::StrAppend(&out, ",\"tool_calls\":[", absl::StrJoin(in.tool_calls(), ","), "]");
  }
  if (!in.tool_call_id().empty()) {
    absl::StrAppend(&out, ",\"tool_call_id\":", json_string(in.tool_call_id()));
  }
  if (!in.extra().empty()) {
    const bool object = check_object(absl::StrCat(field, ".extra"), in.extra(), wrong);
    const absl::string_view members = object ? members_of(in.extra()) : "";
    if (!members.empty()) absl::StrAppend(&out, ",", members);
  }
  absl::StrAppend(&out, "}");
  return out;
}

size_t json_bytes(const v1::Chat& in) {
  size_t bytes = in.template_args().size();
  for (const std::string& tool : in.tools()) bytes += tool.size();
  for (const v1::ChatMessage& message : in.messages()) {
    bytes += message.extra().size();
    for (const std::string& call : message.tool_calls()) bytes += call.size();
  }
  return bytes;
}

// The name in {"type": "function", "function": {"name": ...}} or {"name": ...}; else empty.
// REQUIRES: `tool` is a JSON object.
std::string name_of(const std::string& tool) {
  const nlohmann::json json = nlohmann::json::parse(tool, nullptr, /*allow_exceptions=*/false);
  const auto function = json.find("function");
  const nlohmann::json& named = function != json.end() && function->is_object() ? *function : json;
  const auto name = named.find("name");
  return name != named.end() && name->is_string() ? name->get<std::string>() : std::string();
}

void tools_from(const v1::Chat& in, ChatPrompt* out, Violations* wrong) {
  if (in.tools_size() > kMaxTools) {
    wrong->add(out_of_range("chat.tools", absl::StrCat(in.tools_size(), " of them"),
                            absl::StrCat("at most ", kMaxTools)));
    return;
  }
  std::vector<std::string> names;
  for (int i = 0; i < in.tools_size(); ++i) {
    const bool object = check_object(absl::StrCat("chat.tools[", i, "]"), in.tools(i), wrong);
    names.push_back(object ? name_of(in.tools(i)) : "");
  }
  for (int i = 0; i < in.allowed_tools_size(); ++i) {
    if (std::ranges::find(names, in.allowed_tools(i)) != names.end()) continue;
    wrong->add(out_of_range(absl::StrCat("chat.allowed_tools[", i, "]"), "another name",
                            "a name of chat.tools"));
    return;
  }
  switch (in.tool_choice()) {
    case v1::TOOL_CHOICE_NONE:
      return;
    case v1::TOOL_CHOICE_UNSPECIFIED:
    case v1::TOOL_CHOICE_AUTO:
      break;
    case v1::TOOL_CHOICE_REQUIRED:
      out->tool_choice = ToolChoice::kRequired;
      break;
    default:
      wrong->add(out_of_range("chat.tool_choice", static_cast<int>(in.tool_choice()),
                              "TOOL_CHOICE_NONE, TOOL_CHOICE_AUTO, TOOL_CHOICE_REQUIRED"));
  }
  std::vector<absl::string_view> shown;
  for (int i = 0; i < in.tools_size(); ++i) {
    const std::string& name = names[static_cast<size_t>(i)];
    const auto& allowed = in.allowed_tools();
    if (!allowed.empty() && std::ranges::find(allowed, name) == allowed.end()) continue;
    shown.emplace_back(in.tools(i));
    out->tool_indexes.push_back(i);
    if (!name.empty()) out->tool_names.push_back(name);
  }
  if (!shown.empty()) out->tools_json = absl::StrCat("[", absl::StrJoin(shown, ","), "]");
  if (in.has_parallel_tool_calls()) out->parallel_tool_calls = in.parallel_tool_calls();
}

}  // namespace

ChatPrompt chat_prompt_from(const v1::Chat& in, Violations* wrong) {
  ChatPrompt out;
  if (const size_t bytes = json_bytes(in); bytes > kMaxJsonBytes) {
    wrong->add(out_of_range("chat", absl::StrCat(bytes, " bytes of JSON"),
                            absl::StrCat("at most ", kMaxJsonBytes)));
    return out;
  }
  if (in.messages().empty() || in.messages_size() > kMaxMessages) {
    wrong->add(out_of_range("chat.messages", absl::StrCat(in.messages_size(), " of them"),
                            absl::StrCat("1 to ", kMaxMessages)));
  }
  std::vector<std::string> messages;
  for (int i = 0; i < std::min(in.messages_size(), kMaxMessages); ++i) {
    messages.push_back(message_json(in.messages(i), absl::StrCat("chat.messages[", i, "]"), wrong));
  }
  out.messages_json = absl::StrCat("[", absl::StrJoin(messages, ","), "]");

  tools_from(in, &out, wrong);

  if (!in.template_args().empty()) {
    check_object("chat.template_args", in.template_args(), wrong);
    out.template_args_json = in.template_args();
  }
  if (in.has_add_generation_prompt()) out.add_generation_prompt = in.add_generation_prompt();
  return out;
}

}  // namespace tandem
