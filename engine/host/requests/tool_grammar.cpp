#include "engine/host/requests/tool_grammar.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Models can repeat whitespace without end.
constexpr char kWhitespace[] = R"([\x20\x0A\x0D\x09]{1,32})";

// Each text has one spelling (engine/text/rust/src/grammar.rs).
constexpr char kEscapes[] = "nrbtf\\\"";

// A text in Lark.
std::string literal(const std::string& text) { return Json(text).dump(); }

// A marker: a special token, or its text.
std::string marker(const GrammarSyntax& syntax, const std::string& text) {
  const int id = syntax.special ? syntax.special(text) : -1;
  return id < 0 ? literal(text) : absl::StrCat("<[", id, "]>");
}

std::string schema_rule(const std::string& schema, const std::string& whitespace = "") {
  Json json = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) json = Json::object({{"type", "object"}});
  json["x-guidance"] = {{"whitespace_pattern", whitespace.empty() ? kWhitespace : whitespace},
                        {"json_allowed_escapes", kEscapes}};
  return absl::StrCat("%json ", json.dump());
}

// {"name": ..., KEY: {...}}
std::string object_rule(const ToolDefinition& tool, const char* key) {
  return absl::StrCat(
      literal(absl::StrCat("{\"name\": ", Json(tool.name).dump(), ", \"", key, "\": ")), " ",
      schema_rule(tool.parameters), " \"}\"");
}

// The rules of a block of reasoning, and what precedes the answer in `start`.
std::string reasoning_rules(const GrammarSyntax& syntax, std::string* before) {
  if (syntax.start == ReasoningStart::kNone || !syntax.reasoning.any()) return "";
  const std::string close = marker(syntax, syntax.reasoning.close);
  std::string out;
  if (close[0] == '<') {
    absl::StrAppend(&out, "thought: TEXT ", close, "\n");
  } else {
    absl::StrAppend(&out, "thought[lazy]: TEXT ", close, "\n");
  }
  absl::StrAppend(&out, "TEXT: /(.|\\n)*/\nGAP: /[ \\n]{1,4}/\n");
  const bool open = syntax.start == ReasoningStart::kOpen;
  *before = open ? "thought GAP? "
                 : absl::StrCat("(", marker(syntax, syntax.reasoning.open), " thought GAP?)? ");
  return out;
}

}  // namespace

std::vector<ToolDefinition> tool_definitions(const std::string& tools_json) {
  std::vector<ToolDefinition> out;
  const Json tools = Json::parse(tools_json, nullptr, /*allow_exceptions=*/false);
  for (size_t i = 0; i < (tools.is_array() ? tools.size() : 0); ++i) {
    const Json& tool = tools[i];
    const auto function = tool.find("function");
    const Json& of = function != tool.end() && function->is_object() ? *function : tool;
    const auto name = of.find("name");
    if (name == of.end() || !name->is_string()) continue;
    ToolDefinition one;
    one.index = i;
    one.flat = &of == &tool;
    one.name = name->get<std::string>();
    const auto parameters = of.find("parameters");
    one.parameters = parameters != of.end() ? parameters->dump() : R"({"type":"object"})";
    const auto strict = of.find("strict");
    one.strict = strict != of.end() && strict->is_boolean() && strict->get<bool>();
    out.push_back(std::move(one));
  }
  return out;
}

std::string required_calls_grammar(const GrammarSyntax& syntax,
                                   const std::vector<ToolDefinition>& tools, bool parallel) {
  if (syntax.format == ToolFormat::kNone || tools.empty()) return "";
  const bool named = syntax.format == ToolFormat::kMistral && syntax.named_arguments;
  const bool parameters =
      syntax.format == ToolFormat::kLlama3 || syntax.format == ToolFormat::kGemma;
  std::vector<std::string> calls;
  for (const ToolDefinition& tool : tools) {
    calls.push_back(named ? absl::StrCat(literal(tool.name), " ", marker(syntax, "[ARGS]"), " ",
                                         schema_rule(tool.parameters))
                          : object_rule(tool, parameters ? "parameters" : "arguments"));
  }
  std::string out = absl::StrCat("call: ", absl::StrJoin(calls, "\n    | "), "\n");
  const char* const more = parallel ? " (\", \" call)*" : "";
  const std::string list = absl::StrCat("\"[\" call", more, " \"]\"");
  switch (syntax.format) {
    case ToolFormat::kNone:
    case ToolFormat::kLlama3:
    case ToolFormat::kGemma:
      absl::StrAppend(&out, "calls: call\n");
      break;
    case ToolFormat::kHermes:
      absl::StrAppend(&out, "tagged: ", marker(syntax, "<tool_call>"), " \"\\n\" call \"\\n\" ",
                      marker(syntax, "</tool_call>"), "\ncalls: tagged",
                      parallel ? " (\"\\n\" tagged)*" : "", "\n");
      break;
    case ToolFormat::kMistral:
      if (named) {
        absl::StrAppend(&out, "calls: (", marker(syntax, "[TOOL_CALLS]"), " call)",
                        parallel ? "+" : "", "\n");
      } else {
        absl::StrAppend(&out, "calls: ", marker(syntax, "[TOOL_CALLS]"), " ", list, "\n");
      }
      break;
    case ToolFormat::kPhi4:
      absl::StrAppend(&out, "calls: ", marker(syntax, "<|tool_call|>"), " ", list, " ",
                      marker(syntax, "<|/tool_call|>"), "\n");
      break;
  }
  std::string before;
  const std::string reasoning = reasoning_rules(syntax, &before);
  return absl::StrCat("start: ", before, "calls\n", out, reasoning);
}

std::string strict_calls_tag(const GrammarSyntax& syntax,
                             const std::vector<ToolDefinition>& tools) {
  std::string trigger, begin, end;
  switch (syntax.format) {
    case ToolFormat::kHermes:
      trigger = "<tool_call>";
      begin = "<tool_call>\n";
      end = "}\n</tool_call>";
      break;
    case ToolFormat::kMistral:
      trigger = "[TOOL_CALLS]";
      begin = syntax.named_arguments ? trigger : "[TOOL_CALLS][";
      end = syntax.named_arguments ? "" : "}]";
      break;
    case ToolFormat::kPhi4:
      trigger = "<|tool_call|>";
      begin = "<|tool_call|>[";
      end = "}]<|/tool_call|>";
      break;
    default:
      return "";
  }
  const bool named = syntax.format == ToolFormat::kMistral && syntax.named_arguments;
  Json out = {{"structures", Json::array()}, {"triggers", {trigger}}};
  for (const ToolDefinition& tool : tools) {
    const std::string head =
        named ? absl::StrCat(tool.name, "[ARGS]")
              : absl::StrCat("{\"name\": ", Json(tool.name).dump(), ", \"arguments\": ");
    Json schema = Json::parse(tool.parameters, nullptr, /*allow_exceptions=*/false);
    if (!tool.strict || !schema.is_object()) schema = {{"type", "object"}};
    out["structures"].push_back({{"begin", begin + head}, {"schema", schema}, {"end", end}});
  }
  return out.dump();
}

std::string json_after_reasoning(const GrammarSyntax& syntax, const std::string& schema,
                                 const std::string& whitespace) {
  std::string before;
  const std::string reasoning = reasoning_rules(syntax, &before);
  return absl::StrCat("start: ", before, "answer\nanswer: ", schema_rule(schema, whitespace), "\n",
                      reasoning);
}

}  // namespace tandem
