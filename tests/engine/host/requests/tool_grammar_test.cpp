// Grammars of required calls: what they accept, and that the parser reads it as calls.
#include "engine/host/requests/tool_grammar.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/text/answer_parser.h"
#include "engine/text/grammar.h"

namespace tandem {
namespace {

constexpr char kTools[] = R"([
  {"type":"function","function":{"name":"get_weather","strict":true,"parameters":{"type":"object",
    "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"],
    "additionalProperties":false}}},
  {"type":"function","function":{"name":"now"}}])";

GrammarSyntax grammar_syntax(ToolFormat format, bool named = false,
                             ReasoningStart start = ReasoningStart::kNone) {
  GrammarSyntax out;
  out.format = format;
  out.named_arguments = named;
  out.reasoning = {"<think>", "</think>"};
  out.start = start;
  return out;
}

// "complete", "prefix" or "illegal": whether the grammar accepts the text.
std::string verdict(const GrammarSpec& spec, const std::string& text) {
  static const auto vocabulary = *GrammarVocabulary::of(*Tokenizer::bytes(), {256});
  auto matcher = vocabulary->compile(spec);
  EXPECT_TRUE(matcher.ok()) << matcher.status() << "\n" << spec.text;
  if (!matcher.ok()) return "broken";
  const std::vector<Token> tokens = *Tokenizer::bytes()->encode(text, false);
  const auto legal = matcher->advance(tokens);
  EXPECT_TRUE(legal.ok()) << legal.status();
  if (!legal.ok() || *legal < tokens.size()) return "illegal";
  std::vector<uint32_t> bits(vocabulary->mask_words());
  const auto may_end = matcher->mask(bits);
  EXPECT_TRUE(may_end.ok()) << may_end.status();
  return may_end.ok() && *may_end ? "complete" : "prefix";
}

std::string required(const GrammarSyntax& syntax, const std::string& text, bool parallel = true) {
  const std::string grammar = required_calls_grammar(syntax, tool_definitions(kTools), parallel);
  return verdict({GrammarSpec::Kind::kGrammar, grammar, ""}, text);
}

// Names of the calls that the parser finds.
std::string parsed_names(ToolFormat format, const std::string& text) {
  AnswerParser parser({format, {"get_weather", "now"}, true, {}}, false);
  AnswerParts parts;
  parser.push(text, &parts);
  parser.finish(false, &parts);
  std::string out = parts.text;
  for (const CallPart& call : parts.calls) {
    if (!call.name.empty()) out += (out.empty() ? "" : " ") + call.name;
  }
  return out;
}

struct Sample {
  ToolFormat format;
  bool named;
  std::string call;  // of get_weather
  std::string more;  // a call of now behind it; empty: one call only
};
const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = {
      {ToolFormat::kHermes, false,
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"A\"}}\n</tool_call>",
       "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"},
      {ToolFormat::kLlama3, false,
       R"({"name": "get_weather", "parameters": {"city":"A","days":2}})", ""},
      {ToolFormat::kMistral, true, R"([TOOL_CALLS]get_weather[ARGS]{"city": "A"})",
       "[TOOL_CALLS]now[ARGS]{}"},
      {ToolFormat::kPhi4, false,
       R"(<|tool_call|>[{"name": "get_weather", "arguments": {"city": "A"}}]<|/tool_call|>)", ""},
      {ToolFormat::kGemma, false, R"({"name": "get_weather", "parameters": {"city": "A"}})", ""},
  };
  return all;
}

TEST(ToolGrammar, AcceptsTheCallsThatTheParserReads) {
  for (const Sample& s : samples()) {
    SCOPED_TRACE(s.call);
    const GrammarSyntax syntax = grammar_syntax(s.format, s.named);
    EXPECT_EQ(required(syntax, s.call), "complete");
    EXPECT_EQ(parsed_names(s.format, s.call), "get_weather");
    EXPECT_EQ(required(syntax, s.call.substr(0, s.call.size() - 1)), "prefix");
    EXPECT_EQ(required(syntax, "Text"), "illegal");
    EXPECT_EQ(required(syntax, ""), "prefix") << "a call is required";
    if (s.more.empty()) continue;
    EXPECT_EQ(required(syntax, s.call + s.more), "complete");
    EXPECT_EQ(parsed_names(s.format, s.call + s.more), "get_weather now");
    EXPECT_EQ(required(syntax, s.call + s.more, /*parallel=*/false), "illegal");
  }
  const GrammarSyntax mistral = grammar_syntax(ToolFormat::kMistral);
  const std::string list =
      R"([TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "A"}}, {"name": "now", "arguments": {}}])";
  EXPECT_EQ(required(mistral, list), "complete");
  EXPECT_EQ(parsed_names(ToolFormat::kMistral, list), "get_weather now");
}

TEST(ToolGrammar, ArgumentsHaveTheSchemaOfTheTool) {
  const GrammarSyntax llama = grammar_syntax(ToolFormat::kLlama3);
  EXPECT_EQ(required(llama, R"({"name": "get_weather", "parameters": {"city": 1)"), "illegal");
  EXPECT_EQ(required(llama, R"({"name": "get_weather", "parameters": {})"), "illegal");
  EXPECT_EQ(required(llama, R"({"name": "get_weather", "parameters": {"other")"), "illegal");
  EXPECT_EQ(required(llama, R"({"name": "other")"), "illegal");
}

TEST(ToolGrammar, BeginsBehindTheReasoning) {
  const std::string call = R"({"name": "now", "parameters": {}})";
  const GrammarSyntax open = grammar_syntax(ToolFormat::kLlama3, false, ReasoningStart::kOpen);
  EXPECT_EQ(required(open, "So {it} is.\n</think>\n\n" + call), "complete");
  EXPECT_EQ(required(open, "So</think>" + call), "complete");
  EXPECT_EQ(required(open, "So</think>No"), "illegal");
  const GrammarSyntax optional =
      grammar_syntax(ToolFormat::kLlama3, false, ReasoningStart::kOptional);
  EXPECT_EQ(required(optional, call), "complete");
  EXPECT_EQ(required(optional, "<think>\nSo\n</think>\n\n" + call), "complete");
  EXPECT_EQ(required(optional, "So"), "illegal");
  const GrammarSpec json{GrammarSpec::Kind::kGrammar,
                         json_after_reasoning(optional, R"({"type":"integer"})", ""), ""};
  EXPECT_EQ(verdict(json, "<think>1 + 1</think>2"), "complete");
  EXPECT_EQ(verdict(json, "2"), "complete");
  EXPECT_EQ(verdict(json, "<think>1 + 1</think>two"), "illegal");
}

TEST(ToolGrammar, StrictToolsConstrainTheirCallsOnly) {
  const std::vector<ToolDefinition> tools = tool_definitions(kTools);
  ASSERT_EQ(tools.size(), 2U);
  EXPECT_TRUE(tools[0].strict);
  EXPECT_FALSE(tools[1].strict);
  for (const Sample& s : samples()) {
    const std::string tag = strict_calls_tag(grammar_syntax(s.format, s.named), tools);
    if (tag.empty()) continue;
    SCOPED_TRACE(tag);
    const GrammarSpec spec{GrammarSpec::Kind::kStructuralTag, tag, ""};
    EXPECT_EQ(verdict(spec, "Text."), "complete");
    EXPECT_EQ(verdict(spec, "Text. " + s.call), "complete");
    const size_t at = s.call.find("\"A\"");
    EXPECT_EQ(verdict(spec, s.call.substr(0, at) + "1"), "illegal");
  }
  EXPECT_TRUE(strict_calls_tag(grammar_syntax(ToolFormat::kLlama3), tools).empty());
}

}  // namespace
}  // namespace tandem
