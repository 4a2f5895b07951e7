#include "engine/host/requests/answer_format.h"

#include <utility>
#include <variant>

#include "absl/strings/match.h"

namespace tandem {

AnswerFormat answer_format_of(const DeploymentConfig& config, const ChatTemplate* chat,
                              const Tokenizer& tokenizer) {
  const std::string source = chat != nullptr ? chat->source() : "";
  AnswerFormat out;
  out.tools = tool_format_of(source);
  out.named_arguments = absl::StrContains(source, "[ARGS]");
  out.reasoning = reasoning_tags_of(source);
  // The file was checked when it was read.
  if (!config.tool_format.empty()) {
    out.tools = parse_tool_format(config.tool_format).value_or(ToolFormat::kNone);
  }
  if (!config.reasoning_open.empty() || config.no_reasoning) {
    out.reasoning = {config.reasoning_open, config.reasoning_close};
  }
  for (const std::string& text : marker_tokens(out.tools, out.reasoning)) {
    const std::optional<Token> token = tokenizer.token_id(text);
    if (token && tokenizer.is_special(*token)) out.markers.push_back(*token);
  }
  return out;
}

std::optional<AnswerPlan> plan_answer(const AnswerFormat& format, const GenerateRequest& request,
                                      const Tokenizer& tokenizer,
                                      absl::Span<const Token> prompt_end) {
  const auto* const chat = std::get_if<ChatPrompt>(&request.prompt);
  if (chat == nullptr || request.raw_text) return std::nullopt;
  AnswerPlan out;
  if (!chat->tool_names.empty()) out.syntax.tools = format.tools;
  out.syntax.names = chat->tool_names;
  out.syntax.parallel = chat->parallel_tool_calls;
  out.syntax.reasoning = format.reasoning;
  if (out.syntax.tools == ToolFormat::kNone && !out.syntax.reasoning.any()) return std::nullopt;
  const auto text = tokenizer.decode(prompt_end, /*skip_special_tokens=*/false);
  out.in_reasoning = text.ok() && ends_in_reasoning(*text, format.reasoning);
  out.markers = format.markers;
  return out;
}

std::string call_id(uint64_t seed, int choice, int index) {
  static constexpr char kDigits[] =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  // SplitMix64.
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (1 + (static_cast<uint64_t>(choice) << 32) +
                                               static_cast<uint64_t>(index));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  std::string id(9, '0');
  for (char& c : id) {
    c = kDigits[x % 62];
    x /= 62;
  }
  return id;
}

}  // namespace tandem
