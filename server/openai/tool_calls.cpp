#include "server/openai/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

// The same limit as server/grpc/chat_json.cpp, checked here before the conversion.
constexpr size_t kMaxTools = 1024;
constexpr char kChoices[] =
    "\"none\", \"auto\", \"required\", {\"type\":\"function\",...}, "
    "{\"type\":\"allowed_tools\",...}";

std::optional<v1::ToolChoice> mode_of(absl::string_view name) {
  if (name == "none") return v1::TOOL_CHOICE_NONE;
  if (name == "auto") return v1::TOOL_CHOICE_AUTO;
  if (name == "required" || name == "any") return v1::TOOL_CHOICE_REQUIRED;
  return std::nullopt;
}

// {"type": "function", "function": {"name": ...}}
void named_tool_from(absl::string_view object, const std::string& path, v1::Chat* out,
                     Violations* wrong) {
  if (kind_of(object) != JsonKind::kObject) {
    return wrong->add(out_of_range(path, kind_name(kind_of(object)), "an object"));
  }
  Fields tool(object, path + ".", wrong);
  const std::string type = tool.string("type").value_or("");
  const auto function = tool.of_kind("function", JsonKind::kObject);
  if (type != "function" || !function.has_value()) {
    return wrong->add(
        out_of_range(path + ".type", "another type", "\"function\", with the member \"function\""));
  }
  Fields named(*function, path + ".function.", wrong);
  out->add_allowed_tools(named.string("name").value_or(""));
}

void allowed_tools_from(absl::string_view object, v1::Chat* out, Violations* wrong) {
  static constexpr char kPath[] = "tool_choice.allowed_tools";
  Fields allowed(object, absl::StrCat(kPath, "."), wrong);
  const std::string name = allowed.string("mode").value_or("auto");
  const std::optional<v1::ToolChoice> mode = mode_of(name);
  if (!mode || *mode == v1::TOOL_CHOICE_NONE) {
    wrong->add(
        out_of_range(absl::StrCat(kPath, ".mode"), "another value", "\"auto\", \"required\""));
  } else {
    out->set_tool_choice(*mode);
  }
  const std::vector<absl::string_view> tools = allowed.array("tools");
  if (tools.empty() || tools.size() > kMaxTools) {
    return wrong->add(out_of_range(absl::StrCat(kPath, ".tools"),
                                   absl::StrCat(tools.size(), " of them"),
                                   absl::StrCat("1 to ", kMaxTools)));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    named_tool_from(tools[i], absl::StrCat(kPath, ".tools[", i, "]"), out, wrong);
  }
}

void tool_choice_from(absl::string_view choice, v1::Chat* out, Violations* wrong) {
  if (kind_of(choice) == JsonKind::kString) {
    const std::string name = string_of(choice);
    if (const auto mode = mode_of(name)) return out->set_tool_choice(*mode);
    return wrong->add(out_of_range("tool_choice", "another value", kChoices));
  }
  if (kind_of(choice) != JsonKind::kObject) {
    return wrong->add(out_of_range("tool_choice", kind_name(kind_of(choice)), kChoices));
  }
  Fields fields(choice, "tool_choice.", wrong);
  if (const auto allowed = fields.of_kind("allowed_tools", JsonKind::kObject)) {
    return allowed_tools_from(*allowed, out, wrong);
  }
  out->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  named_tool_from(choice, "tool_choice", out, wrong);
}

}  // namespace

void tools_from(Fields* in, v1::Chat* out, Violations* wrong) {
  const std::vector<absl::string_view> tools = in->array("tools");
  if (tools.size() > kMaxTools) {
    return wrong->add(out_of_range("tools", absl::StrCat(tools.size(), " of them"),
                                   absl::StrCat("at most ", kMaxTools)));
  }
  for (const absl::string_view tool : tools) out->add_tools(std::string(tool));
  if (const auto choice = in->any("tool_choice")) tool_choice_from(*choice, out, wrong);
  if (const auto parallel = in->boolean("parallel_tool_calls")) {
    out->set_parallel_tool_calls(*parallel);
  }
}

size_t AnswerDelta::bytes() const {
  size_t bytes = reasoning.size();
  for (const v1::ToolCall& call : calls) {
    bytes += 64 + call.id().size() + call.name().size() + call.arguments().size();
  }
  return bytes;
}

void AnswerDelta::add(const v1::ToolCall& part) {
  if (calls.empty() || calls.back().index() != part.index()) {
    calls.push_back(part);
    return;
  }
  v1::ToolCall& call = calls.back();
  call.mutable_id()->append(part.id());
  call.mutable_name()->append(part.name());
  call.mutable_arguments()->append(part.arguments());
  if (part.broken()) call.set_broken(true);
}

void AnswerDelta::append(const AnswerDelta& later) {
  reasoning += later.reasoning;
  for (const v1::ToolCall& part : later.calls) add(part);
}

void keep_valid_calls(std::vector<v1::ToolCall>* calls) {
  std::erase_if(*calls, [](const v1::ToolCall& call) { return call.broken(); });
  for (size_t i = 0; i < calls->size(); ++i) (*calls)[i].set_index(static_cast<int>(i));
}

std::string tool_calls_json(const std::vector<v1::ToolCall>& calls, bool deltas) {
  std::string out = "[";
  for (const v1::ToolCall& call : calls) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", "{");
    if (deltas) absl::StrAppend(&out, "\"index\":", call.index(), ",");
    if (!call.id().empty()) {
      absl::StrAppend(&out, "\"id\":", json_string(call.id()), ",\"type\":\"function\",");
    }
    out += "\"function\":{";
    if (!call.name().empty()) absl::StrAppend(&out, "\"name\":", json_string(call.name()), ",");
    absl::StrAppend(&out, "\"arguments\":", json_string(call.arguments()), "}}");
  }
  return out + "]";
}

}  // namespace tandem::openai
