// The syntax in which a model writes tool calls and reasoning, and how it is recognized.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class ToolFormat : uint8_t {
  kNone,     // unknown: calls stay in the text
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen)
  kLlama3,   // {"name": ..., "parameters": {...}}, optionally after <|python_tag|>
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name[ARGS]{...}
  kPhi4,     // <|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>, or functools[...]
  kGemma,    // ```tool_code with Python calls, or a JSON object with or without a fence
};
inline constexpr std::string_view kToolFormatNames = "none, hermes, llama3, mistral, phi4, gemma";

// "hermes"; nullopt: another name.
std::optional<ToolFormat> parse_tool_format(std::string_view name);
std::string_view tool_format_name(ToolFormat format);

// The format that a chat template teaches: by the markers in its text.
ToolFormat tool_format_of(std::string_view chat_template);

// The texts around a block of reasoning.
struct ReasoningTags {
  std::string open, close;  // empty: the model writes no such blocks
  bool any() const { return !close.empty(); }
  friend bool operator==(const ReasoningTags&, const ReasoningTags&) = default;
};
// Those that the text of a chat template mentions: <think> or [THINK].
ReasoningTags reasoning_tags_of(std::string_view chat_template);

// Does a prompt end inside a block, that is with the opening tag and space?
bool ends_in_reasoning(std::string_view prompt_end, const ReasoningTags& tags);

// Spellings of the tokens that delimit calls and reasoning. A tokenizer may have them as special
// tokens, which the text omits, but the parser needs.
std::vector<std::string> marker_tokens(ToolFormat format, const ReasoningTags& reasoning);

}  // namespace tandem
