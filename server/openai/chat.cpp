// The messages of a chat completion, and other input of its template.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/openai/fields.h"
#include "server/openai/request.h"
#include "server/openai/tool_calls.h"

namespace tandem::openai {
namespace {

// The same limit as server/grpc/chat_json.cpp, checked here before the conversion.
constexpr size_t kMaxMessages = 4096;

// A string, or parts of type "text", which are joined by newlines.
std::string content_from(Fields* in, Violations* wrong) {
  const auto content = in->any("content");
  if (!content.has_value()) return "";
  if (kind_of(*content) == JsonKind::kString) return string_of(*content);
  if (kind_of(*content) != JsonKind::kArray) {
    wrong->add(out_of_range(in->path("content"), kind_name(kind_of(*content)),
                            "a string or an array of text parts"));
    return "";
  }
  std::string text;
  int index = 0;
  for (const absl::string_view part : elements_of(*content)) {
    const std::string path = absl::StrCat(in->path("content"), "[", index++, "]");
    if (kind_of(part) != JsonKind::kObject) {
      wrong->add(out_of_range(path, kind_name(kind_of(part)), "an object"));
      return "";
    }
    Fields fields(part, path + ".", wrong);
    const std::string type = fields.string("type").value_or("");
    if (type != "text") {
      wrong->add(
          out_of_range(path + ".type", "another type", "\"text\" (others are not supported)"));
      return "";
    }
    // Other members, such as a cache hint, do not change the text.
    absl::StrAppend(&text, index > 1 ? "\n" : "", fields.string("text").value_or(""));
  }
  return text;
}

// Clients send the arguments of a call as JSON in a string; templates need the JSON itself.
std::string function_of(absl::string_view function, const std::string& path, Violations* wrong) {
  std::string out = "{";
  for (const auto& [name, value] : members_of(function)) {
    std::string given(value);
    if (name == "arguments" && kind_of(value) == JsonKind::kString) {
      given = string_of(value);
      if (given.empty()) given = "{}";
      if (!is_json(given) || kind_of(given) != JsonKind::kObject) {
        wrong->add(out_of_range(path + ".arguments", "a string that is not a JSON object",
                                "a JSON object in a string"));
        given = "{}";
      }
    }
    absl::StrAppend(&out, out.size() > 1 ? "," : "", json_string(name), ":", given);
  }
  return out + "}";
}

std::string tool_call_of(absl::string_view call, const std::string& path, Violations* wrong) {
  if (kind_of(call) != JsonKind::kObject) {
    wrong->add(out_of_range(path, kind_name(kind_of(call)), "an object"));
    return "{}";
  }
  std::string out = "{";
  for (const auto& [name, value] : members_of(call)) {
    const bool function = name == "function" && kind_of(value) == JsonKind::kObject;
    absl::StrAppend(&out, out.size() > 1 ? "," : "", json_string(name), ":",
                    function ? function_of(value, path + ".function", wrong) : std::string(value));
  }
  return out + "}";
}

void message_from(absl::string_view object, const std::string& path, v1::ChatMessage* out,
                  Violations* wrong) {
  Fields in(object, path + ".", wrong);
  const std::string role = in.string("role").value_or("");
  out->set_role(role == "developer" ? "system" : role);  // templates have no developer role
  out->set_content(content_from(&in, wrong));
  out->set_name(in.string("name").value_or(""));
  out->set_tool_call_id(in.string("tool_call_id").value_or(""));
  int index = 0;
  for (const absl::string_view call : in.array("tool_calls")) {
    if (wrong->full()) break;
    out->add_tool_calls(
        tool_call_of(call, absl::StrCat(in.path("tool_calls"), "[", index++, "]"), wrong));
  }
  in.refuse("audio");
  in.refuse("function_call");
  in.ignore("refusal");  // from responses that are sent back
  in.ignore("annotations");
  const std::string extra = in.rest();
  if (!extra.empty()) out->set_extra("{" + extra + "}");
}

}  // namespace

void chat_from(Fields* in, v1::Chat* out, Violations* wrong) {
  const std::vector<absl::string_view> messages = in->array("messages");
  if (messages.empty() || messages.size() > kMaxMessages) {
    wrong->add(out_of_range("messages", absl::StrCat(messages.size(), " of them"),
                            absl::StrCat("1 to ", kMaxMessages)));
  }
  for (size_t i = 0; i < std::min(messages.size(), kMaxMessages) && !wrong->full(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    if (kind_of(messages[i]) != JsonKind::kObject) {
      wrong->add(out_of_range(path, kind_name(kind_of(messages[i])), "an object"));
      continue;
    }
    message_from(messages[i], path, out->add_messages(), wrong);
  }
  tools_from(in, out, wrong);
  if (const auto args = in->of_kind("chat_template_kwargs", JsonKind::kObject)) {
    out->set_template_args(std::string(*args));
  }
}

}  // namespace tandem::openai
