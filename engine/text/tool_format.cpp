#include "engine/text/tool_format.h"

#include <array>
#include <utility>

namespace tandem {
namespace {

constexpr std::array<std::pair<ToolFormat, std::string_view>, 6> kNames = {{
    {ToolFormat::kNone, "none"},
    {ToolFormat::kHermes, "hermes"},
    {ToolFormat::kLlama3, "llama3"},
    {ToolFormat::kMistral, "mistral"},
    {ToolFormat::kPhi4, "phi4"},
    {ToolFormat::kGemma, "gemma"},
}};

}  // namespace

std::optional<ToolFormat> parse_tool_format(std::string_view name) {
  for (const auto& [format, known] : kNames) {
    if (name == known) return format;
  }
  return std::nullopt;
}

std::string_view tool_format_name(ToolFormat format) {
  return kNames[static_cast<size_t>(format)].second;
}

ToolFormat tool_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (has("[TOOL_CALLS]")) return ToolFormat::kMistral;
  // Qwen3-Coder writes <function=name> elements inside the tags.
  if (has("<tool_call>")) return has("<function=") ? ToolFormat::kNone : ToolFormat::kHermes;
  if (has("<|tool_call|>") || has("<|tool|>") || has("functools[")) return ToolFormat::kPhi4;
  if (has("<|python_tag|>") || (has("<|start_header_id|>") && has("tools"))) {
    return ToolFormat::kLlama3;
  }
  if (has("<start_of_turn>")) return ToolFormat::kGemma;
  return ToolFormat::kNone;
}

ReasoningTags reasoning_tags_of(std::string_view chat_template) {
  const auto has = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (has("<think>") || has("</think>")) return {"<think>", "</think>"};
  if (has("[/THINK]")) return {"[THINK]", "[/THINK]"};
  return {};
}

bool ends_in_reasoning(std::string_view prompt_end, const ReasoningTags& tags) {
  const size_t last = prompt_end.find_last_not_of(" \t\r\n");
  return tags.any() && last != std::string_view::npos &&
         prompt_end.substr(0, last + 1).ends_with(tags.open);
}

std::vector<std::string> marker_tokens(ToolFormat format, const ReasoningTags& reasoning) {
  std::vector<std::string> out;
  switch (format) {
    case ToolFormat::kHermes:
      out = {"<tool_call>", "</tool_call>"};
      break;
    case ToolFormat::kLlama3:
      out = {"<|python_tag|>"};
      break;
    case ToolFormat::kMistral:
      out = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"};
      break;
    case ToolFormat::kPhi4:
      out = {"<|tool_call|>", "<|/tool_call|>"};
      break;
    case ToolFormat::kNone:
    case ToolFormat::kGemma:
      break;
  }
  if (reasoning.any()) out.insert(out.end(), {reasoning.open, reasoning.close});
  return out;
}

}  // namespace tandem
