#include "engine/host/requests/answer_constraint.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/requests/tool_grammar.h"

namespace tandem {
namespace {

GrammarSyntax syntax_of(const AnswerFormat& format, const AnswerPlan& answer,
                        const Tokenizer& tokenizer) {
  GrammarSyntax out;
  out.format = format.tools;
  out.named_arguments = format.named_arguments;
  out.reasoning = format.reasoning;
  if (answer.in_reasoning) {
    out.start = ReasoningStart::kOpen;
  } else if (format.reasoning.any()) {
    out.start = ReasoningStart::kOptional;
  }
  out.special = [&tokenizer](std::string_view text) {
    const std::optional<Token> token = tokenizer.token_id(text);
    return token && tokenizer.is_special(*token) ? *token : -1;
  };
  return out;
}

GrammarSpec lark(const std::string& text) {
  // "::=" would mean GBNF. Here it can only stand in JSON strings.
  return {GrammarSpec::Kind::kGrammar, absl::StrReplaceAll(text, {{"::=", "::\\u003d"}}), ""};
}

absl::StatusOr<GrammarSpec> required_calls(const ChatPrompt& chat, const GrammarSyntax& syntax) {
  const std::vector<ToolDefinition> tools = tool_definitions(chat.tools_json);
  if (tools.empty()) {
    return out_of_range("chat.tools", "none", "at least one with a name, as a call is required");
  }
  const std::string grammar = required_calls_grammar(syntax, tools, chat.parallel_tool_calls);
  if (grammar.empty()) {
    return absl::FailedPreconditionError(
        "chat.tool_choice: the model's format of tool calls is unknown; offered: TOOL_CHOICE_AUTO, "
        "TOOL_CHOICE_NONE, or `tool_format` in the deployment");
  }
  return lark(grammar);
}

// The same status with another field.
absl::Status of_field(const absl::Status& status, const std::string& field) {
  return wrong_field(field, violations_of(status).front().description);
}

std::string schema_path(const ChatPrompt& chat, const ToolDefinition& tool) {
  const int index = tool.index < chat.tool_indexes.size() ? chat.tool_indexes[tool.index]
                                                          : static_cast<int>(tool.index);
  return absl::StrCat("chat.tools[", index, tool.flat ? "].parameters" : "].function.parameters");
}

}  // namespace

absl::StatusOr<std::optional<GrammarSpec>> answer_constraint(
    const AnswerFormat& format, const std::optional<AnswerPlan>& answer,
    const GenerateRequest& request, const Tokenizer& tokenizer) {
  const auto* const chat = std::get_if<ChatPrompt>(&request.prompt);
  if (chat == nullptr) return request.constraint;
  const GrammarSyntax syntax = syntax_of(format, answer.value_or(AnswerPlan{}), tokenizer);
  if (chat->tool_choice == ToolChoice::kRequired) {
    if (request.constraint) {
      return out_of_range("chat.tool_choice", "TOOL_CHOICE_REQUIRED",
                          "TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE with another constraint");
    }
    TANDEM_ASSIGN_OR_RETURN(GrammarSpec calls, required_calls(*chat, syntax));
    return calls;
  }
  if (!answer) return request.constraint;
  if (!request.constraint) {
    if (chat->tool_names.empty()) return std::nullopt;
    const std::vector<ToolDefinition> tools = tool_definitions(chat->tools_json);
    if (std::ranges::none_of(tools, &ToolDefinition::strict)) return std::nullopt;
    const std::string tag = strict_calls_tag(syntax, tools);
    if (tag.empty()) return std::nullopt;
    return GrammarSpec{GrammarSpec::Kind::kStructuralTag, tag, ""};
  }
  if (syntax.start == ReasoningStart::kNone) return request.constraint;
  switch (request.constraint->kind) {
    case GrammarSpec::Kind::kJsonSchema:
      return lark(json_after_reasoning(syntax, request.constraint->text,
                                       request.constraint->whitespace_pattern));
    case GrammarSpec::Kind::kJsonObject:
      return lark(json_after_reasoning(syntax, R"({"type":"object"})",
                                       request.constraint->whitespace_pattern));
    default:
      return request.constraint;
  }
}

absl::Status at_fault(const absl::Status& refused, const GenerateRequest& request,
                      absl::FunctionRef<absl::Status(const GrammarSpec&)> compile) {
  const std::vector<Violation> violations = violations_of(refused);
  if (violations.size() != 1) return refused;
  const std::string& field = violations.front().field;
  if (field != "grammar" && field != "structural_tag") return refused;
  if (request.constraint) {
    const absl::Status alone = compile(*request.constraint);
    if (!alone.ok()) return alone;
    const bool schema = request.constraint->kind == GrammarSpec::Kind::kJsonSchema;
    return of_field(refused, schema ? "json_schema" : "json_object");
  }
  const auto& chat = std::get<ChatPrompt>(request.prompt);
  for (const ToolDefinition& tool : tool_definitions(chat.tools_json)) {
    if (chat.tool_choice != ToolChoice::kRequired && !tool.strict) continue;
    if (!absl::StartsWith(tool.parameters, "{")) continue;  // any object
    const absl::Status alone = compile({GrammarSpec::Kind::kJsonSchema, tool.parameters, ""});
    if (violations_of(alone).size() == 1) return of_field(alone, schema_path(chat, tool));
  }
  return of_field(refused, "chat.tools");
}

}  // namespace tandem
