#include "engine/text/answer_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

using Format = ToolFormat;
const ReasoningTags kThink{"<think>", "</think>"};

// The calls of an answer, each as one part.
std::vector<CallPart> whole_calls(const AnswerParts& parts) {
  std::vector<CallPart> calls;
  for (const CallPart& part : parts.calls) {
    const auto index = static_cast<size_t>(part.index);
    EXPECT_LE(index, calls.size()) << "indices are consecutive";
    if (index == calls.size()) calls.emplace_back();
    CallPart& call = calls.at(index);
    EXPECT_EQ(part.name.empty(), !call.name.empty()) << "the first part has the name";
    call.name += part.name;
    call.arguments += part.arguments;
    EXPECT_FALSE(call.broken) << "a broken call has no more parts";
    call.broken = part.broken;
  }
  return calls;
}

// An answer in one line: content, {reasoning}, and name(arguments) of each call, in brackets if it
// is broken.
std::string shown(const AnswerParts& parts) {
  std::string out = parts.text;
  if (!parts.reasoning.empty()) absl::StrAppend(&out, "{", parts.reasoning, "}");
  for (const CallPart& call : whole_calls(parts)) {
    const std::string text = absl::StrCat(call.name, "(", call.arguments, ")");
    absl::StrAppend(&out, " #", call.broken ? "[" + text + "]" : text);
  }
  return out;
}

void append_parts(const AnswerParts& from, AnswerParts* to) {
  to->text += from.text;
  to->reasoning += from.reasoning;
  to->calls.insert(to->calls.end(), from.calls.begin(), from.calls.end());
}

AnswerSyntax syntax_of(Format format, bool parallel = true) {
  return {format, {"get_weather", "now"}, parallel, kThink};
}

// Each piece is its own call of push(), with its own parts.
AnswerParts parse_pieces(const AnswerSyntax& syntax, const std::vector<std::string>& pieces,
                         bool in_reasoning, bool cut) {
  AnswerParser parser(syntax, in_reasoning);
  AnswerParts all;
  for (const std::string& piece : pieces) {
    AnswerParts parts;
    parser.push(piece, &parts);
    append_parts(parts, &all);
  }
  AnswerParts last;
  parser.finish(cut, &last);
  append_parts(last, &all);
  return all;
}

// In one piece, in pieces of 1 to 4 bytes, and in two pieces at every place. All must agree.
std::string answer_of(const AnswerSyntax& syntax, const std::string& text,
                      bool in_reasoning = false, bool cut = false) {
  const std::string whole = shown(parse_pieces(syntax, {text}, in_reasoning, cut));
  for (size_t size = 1; size <= 4; ++size) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size(); i += size) pieces.push_back(text.substr(i, size));
    EXPECT_EQ(shown(parse_pieces(syntax, pieces, in_reasoning, cut)), whole)
        << size << ": " << text;
  }
  for (size_t i = 0; i <= text.size(); ++i) {
    EXPECT_EQ(shown(parse_pieces(syntax, {text.substr(0, i), text.substr(i)}, in_reasoning, cut)),
              whole)
        << i << ": " << text;
  }
  return whole;
}
std::string answer_of(Format format, const std::string& text) {
  return answer_of(syntax_of(format), text);
}

constexpr char kCall[] = R"({"name": "get_weather", "arguments": {"city": "Paris", "days": 2}})";
constexpr char kIs[] = R"( #get_weather({"city": "Paris", "days": 2}))";

TEST(AnswerParser, Hermes) {
  const auto hermes = [](const std::string& text) { return answer_of(Format::kHermes, text); };
  EXPECT_EQ(hermes(absl::StrCat("<tool_call>\n", kCall, "\n</tool_call>")), kIs);
  EXPECT_EQ(hermes(absl::StrCat("Let me look.\n\n<tool_call>\n", kCall, "\n</tool_call>\n")),
            absl::StrCat("Let me look.", kIs));
  EXPECT_EQ(hermes(absl::StrCat("<tool_call>", kCall, "</tool_call>\n<tool_call>\n",
                                R"({"name": "now", "arguments": {}})", "\n</tool_call> Done.")),
            absl::StrCat("Done.", kIs, " #now({})"));
  EXPECT_EQ(hermes(absl::StrCat("<tool_call>", kCall)), kIs) << "the closing tag may be missing";
  EXPECT_EQ(hermes(absl::StrCat("<tool_call>", kCall, "<tool_call>", kCall, "</tool_call>")),
            absl::StrCat(kIs, kIs));
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "other", "arguments": {}}</tool_call>)"), " #other({})")
      << "the client answers calls of unknown tools";
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "now"}</tool_call>)"), " #now({})");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>"),
            R"( #now({"a": "x\ny"}))")
      << "line breaks in strings become escapes";
  EXPECT_EQ(hermes(R"(<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}</tool_call>)"),
            R"( #now({"a": "</tool_call>"}))");
}

TEST(AnswerParser, HermesWithoutTags) {
  const auto hermes = [](const std::string& text) { return answer_of(Format::kHermes, text); };
  EXPECT_EQ(hermes(kCall), kIs);
  EXPECT_EQ(hermes(absl::StrCat("```json\n", kCall, "\n```")), kIs);
  EXPECT_EQ(hermes(absl::StrCat("I call:\n```json\n", kCall, "\n", kCall, "\n```\n")),
            absl::StrCat("I call:", kIs, kIs));
  EXPECT_EQ(hermes(absl::StrCat("```json\n[", kCall, ", ", kCall, "]\n```\nDone")),
            absl::StrCat("Done", kIs, kIs));
  // None of these is a call.
  for (const std::string& text : std::vector<std::string>{
           R"({"name": "other", "arguments": {}})", R"({"temperature": 3})", "{", "```", "```json",
           "```json\n{\"a\": 1}\n```", "```python\nprint(1)\n```\n\nThat is it.",
           absl::StrCat("text ", kCall), "a < b, {x}, <tool>, <tool_cal",
           R"({"name": "now", "description": "d", "parameters": {}})", "```\n\ncode\n```\n",
           "\n\nhello \n", "x\n  {1}\n"}) {
    EXPECT_EQ(hermes(text), text);
  }
}

TEST(AnswerParser, Llama3) {
  const auto llama = [](const std::string& text) { return answer_of(Format::kLlama3, text); };
  const std::string call = R"({"name": "get_weather", "parameters": {"city": "Paris"}})";
  const std::string is = R"( #get_weather({"city": "Paris"}))";
  EXPECT_EQ(llama(call), is);
  EXPECT_EQ(llama("<|python_tag|>" + call), is);
  EXPECT_EQ(llama(call + "; " + call), is + is);
  EXPECT_EQ(llama(call + "\n" + call), is + is);
  EXPECT_EQ(llama("<|python_tag|>" + call + ";" + call), is + is);
  EXPECT_EQ(llama(R"({"type": "function", "name": "now", "parameters": {}})"), " #now({})");
  EXPECT_EQ(llama("Sure.\n" + call), "Sure." + is);
  for (const std::string& text : std::vector<std::string>{
           "<|python_tag|>import os", R"({"name": "other", "parameters": {}})", "{}", "a; b"}) {
    EXPECT_EQ(llama(text), text);
  }
  EXPECT_EQ(llama(call + "; and"), "; and" + is);
}

TEST(AnswerParser, Mistral) {
  const auto mistral = [](const std::string& text) { return answer_of(Format::kMistral, text); };
  EXPECT_EQ(mistral(absl::StrCat("[TOOL_CALLS] [", kCall, "]")), kIs);
  EXPECT_EQ(mistral(absl::StrCat("[TOOL_CALLS][", kCall, ", ", kCall, "]")),
            absl::StrCat(kIs, kIs));
  EXPECT_EQ(mistral(R"([TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdef123"}])"),
            " #now({})");
  EXPECT_EQ(mistral(absl::StrCat("[TOOL_CALLS] ", kCall)), kIs);
  EXPECT_EQ(mistral(R"([TOOL_CALLS]get_weather[ARGS]{"city": "Paris"})"),
            R"( #get_weather({"city": "Paris"}))");
  EXPECT_EQ(mistral(R"([TOOL_CALLS]get_weather{"city": "Paris"}[TOOL_CALLS]now[ARGS]{})"),
            R"( #get_weather({"city": "Paris"}) #now({}))");
  EXPECT_EQ(mistral(R"(Text [TOOL_CALLS]now[CALL_ID]abcDEF123[ARGS]{})"), "Text #now({})");
  for (const std::string& text : std::vector<std::string>{
           "[TOOL_CALLS]", "[TOOL_CALLS] []", "[TOOL_CALLS]now", "[TOOL_CALLS]no calls {", "[TOOL",
           kCall, "[TOOL_CALLS]now[ARG]{}", "[TOOL_CALLS]now[ARGS][1]"}) {
    EXPECT_EQ(mistral(text), text);
  }
}

TEST(AnswerParser, Phi4) {
  const auto phi = [](const std::string& text) { return answer_of(Format::kPhi4, text); };
  EXPECT_EQ(phi(absl::StrCat("<|tool_call|>[", kCall, "]<|/tool_call|>")), kIs);
  EXPECT_EQ(phi(absl::StrCat("Hm. <|tool_call|>[", kCall, ",", kCall, "]")),
            absl::StrCat("Hm.", kIs, kIs));
  EXPECT_EQ(phi(absl::StrCat("functools[", kCall, "]")), kIs);
  for (const std::string& text : std::vector<std::string>{
           "functools is a module", "import functools[", absl::StrCat("functools", kCall),
           "<|tool_call|>nothing<|/tool_call|>"}) {
    EXPECT_EQ(phi(text), text);
  }
}

TEST(AnswerParser, Gemma) {
  const auto gemma = [](const std::string& text) { return answer_of(Format::kGemma, text); };
  const std::string is = R"( #get_weather({"city":"Paris"}))";
  EXPECT_EQ(gemma("```tool_code\nget_weather(city=\"Paris\")\n```"), is);
  EXPECT_EQ(gemma("```tool_code\nprint(get_weather(city='Paris'))\n```\n"), is);
  EXPECT_EQ(gemma("Ok.\n```tool_code\napi.get_weather(city='Paris')\nnow()\n```"),
            "Ok." + is + " #now({})");
  EXPECT_EQ(gemma("[get_weather(city='Paris'), now()]"), is + " #now({})");
  EXPECT_EQ(gemma("[get_weather(city='[(\\'')]"), R"( #get_weather({"city":"[('"}))");
  EXPECT_EQ(gemma("```tool_code\nnow()"), " #now({})") << "the fence may be missing";
  EXPECT_EQ(gemma(R"({"name": "get_weather", "parameters": {"city":"Paris"}})"), is);
  EXPECT_EQ(
      gemma("```json\n{\"name\": \"get_weather\", \"parameters\": {\"city\":\"Paris\"}}\n```"), is);
  for (const std::string& text : std::vector<std::string>{
           "```tool_code\nimport os\n```", "```tool_code\nother(a=1)\n```", "[1] a reference",
           "[text](url)", "[now()", "[other(a=1)]", "[now() + 1]", "[", "```tool_code\n"}) {
    EXPECT_EQ(gemma(text), text);
  }
}

TEST(AnswerParser, MalformedCallsAreText) {
  const auto hermes = [](const std::string& text) { return answer_of(Format::kHermes, text); };
  for (const std::string& text : std::vector<std::string>{
           "<tool_call>", "<tool_call>\nnothing</tool_call>",
           "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"now\"", "a <tool_call> b"}) {
    EXPECT_EQ(hermes(text), text);
  }
  EXPECT_EQ(
      hermes(absl::StrCat("<tool_call>{bad}</tool_call>\n<tool_call>", kCall, "</tool_call>")),
      absl::StrCat("<tool_call>{bad}</tool_call>", kIs));
  EXPECT_EQ(hermes(absl::StrCat("<tool_call>\n<tool_call>", kCall, "</tool_call>")),
            absl::StrCat("<tool_call>", kIs));
}

TEST(AnswerParser, ACallThatBreaksOffIsMarked) {
  const std::string text = R"(<tool_call>{"name": "now", "arguments": {"a": x}}</tool_call>)";
  EXPECT_EQ(answer_of(Format::kHermes, text), text + R"( #[now({"a": )])");
  EXPECT_EQ(answer_of(Format::kHermes, "Hm.\n " + text), "Hm.\n " + text + R"( #[now({"a": )])");
  const std::string open = R"(<tool_call>{"name": "now", "arguments": {"a": "b)";
  EXPECT_EQ(answer_of(Format::kHermes, open), open + R"( #[now({"a": "b)])")
      << "ended by the model: not valid";
  EXPECT_EQ(answer_of(syntax_of(Format::kHermes), open, false, /*cut=*/true), R"( #now({"a": "b))")
      << "ended by a limit: incomplete";
  EXPECT_EQ(answer_of(Format::kHermes, text + absl::StrCat("<tool_call>", kCall, "</tool_call>")),
            absl::StrCat(text, R"( #[now({"a": )])", kIs));
}

TEST(AnswerParser, OnlyTheFirstCallIfNotParallel) {
  const AnswerSyntax one = syntax_of(Format::kHermes, /*parallel=*/false);
  const std::string call = absl::StrCat("<tool_call>", kCall, "</tool_call>");
  EXPECT_EQ(answer_of(one, call + "\n" + call + "Text"), absl::StrCat("Text", kIs));
  EXPECT_EQ(answer_of(one, call + "<tool_call>{bad"), absl::StrCat("<tool_call>{bad", kIs));
}

TEST(AnswerParser, CompleteCallsAreCounted) {
  AnswerParser parser(syntax_of(Format::kHermes), false);
  AnswerParts parts;
  parser.push(absl::StrCat("<tool_call>", kCall, "</tool_call><tool_call>{\"name\": \"now\","),
              &parts);
  EXPECT_EQ(parser.complete_calls(), 1);
  parser.push("\"arguments\":{}}", &parts);
  EXPECT_EQ(parser.complete_calls(), 2);
}

TEST(AnswerParser, Reasoning) {
  const AnswerSyntax think{Format::kNone, {}, true, kThink};
  EXPECT_EQ(answer_of(think, "<think>\nI see.\n\nSo\n</think>\n\nYes."), "Yes.{I see.\n\nSo}");
  EXPECT_EQ(answer_of(think, "\n<think>a</think>b"), "b{a}");
  EXPECT_EQ(answer_of(think, "I see.\n</think>\n\nYes. ", /*in_reasoning=*/true), "Yes. {I see.}");
  EXPECT_EQ(answer_of(think, "<think>\n\n</think>\n\nYes."), "Yes.");
  EXPECT_EQ(answer_of(think, "<think>\nnever ends </thin"), "{never ends </thin}");
  EXPECT_EQ(answer_of(think, "<think>a < b</think>c"), "c{a < b}");
  EXPECT_EQ(answer_of(think, "\n Yes <think>no</think>"), "\n Yes <think>no</think>")
      << "only at the start";
  EXPECT_EQ(answer_of(think, " <thin"), " <thin");
  EXPECT_EQ(answer_of(think, ""), "");
}

TEST(AnswerParser, ReasoningHoldsNoCalls) {
  const std::string call = absl::StrCat("<tool_call>", kCall, "</tool_call>");
  EXPECT_EQ(answer_of(Format::kHermes, "<think>" + call + "</think>\n" + call),
            absl::StrCat("{", call, "}", kIs));
  AnswerParser parser(syntax_of(Format::kHermes), /*in_reasoning=*/true);
  AnswerParts parts;
  EXPECT_TRUE(parser.in_reasoning());
  parser.push("a</think", &parts);
  EXPECT_TRUE(parser.in_reasoning());
  parser.push(">", &parts);
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(AnswerParser, TextIsNotHeldBackWithoutNeed) {
  AnswerParser parser(syntax_of(Format::kHermes), false);
  AnswerParts parts;
  parser.push("Hello, <b", &parts);
  EXPECT_EQ(parts.text, "Hello, <b");
  parser.push(" <tool", &parts);
  EXPECT_EQ(parts.text, "Hello, <b") << "may become a call";
  parser.push("s>", &parts);
  EXPECT_EQ(parts.text, "Hello, <b <tools>");
  parts = {};
  parser.push("\n{\"name\": \"now\", \"arguments\": {\"a\"", &parts);
  EXPECT_EQ(shown(parts), R"( #now({"a"))") << "arguments are passed on as they arrive";
}

// Random pieces of all formats: the result does not depend on the split, arguments of calls that
// are not broken are JSON objects, and without calls and reasoning the text is unchanged.
TEST(AnswerParser, RandomText) {
  const std::vector<std::string> fragments = {"<tool_call>",
                                              "</tool_call>",
                                              "[TOOL_CALLS]",
                                              "[ARGS]",
                                              "[CALL_ID]",
                                              "<|python_tag|>",
                                              "<|tool_call|>",
                                              "<|/tool_call|>",
                                              "functools",
                                              "```",
                                              "```json\n",
                                              "```tool_code\n",
                                              "<think>",
                                              "</think>",
                                              "{",
                                              "}",
                                              "[",
                                              "]",
                                              "(",
                                              ")",
                                              ",",
                                              ";",
                                              ":",
                                              "\"",
                                              "'",
                                              "\\",
                                              "\n",
                                              " ",
                                              "=",
                                              "now",
                                              "get_weather",
                                              "\"name\"",
                                              "\"arguments\"",
                                              "\"parameters\"",
                                              "\"now\"",
                                              "\"function\"",
                                              "{\"name\": \"now\", ",
                                              "\"arguments\": {",
                                              "{\"x\": 1}",
                                              "}}",
                                              "1.5",
                                              "-",
                                              "null",
                                              "true",
                                              "text",
                                              "\xC3\xA9",
                                              "now()",
                                              "{\"name\": \"now\", \"arguments\": {\"y\": []}}"};
  // By format.
  const std::vector<std::vector<std::string>> openings = {{""},
                                                          {"<tool_call>", "\n"},
                                                          {"<|python_tag|>", "\n"},
                                                          {"[TOOL_CALLS]", "[TOOL_CALLS]now"},
                                                          {"<|tool_call|>[", "functools["},
                                                          {"```tool_code\n", "\n[", "```json\n"}};
  std::mt19937 random(11);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int calls = 0, broken = 0, unchanged = 0;
  for (int i = 0; i < 10000; ++i) {
    const size_t format = below(openings.size());
    AnswerSyntax syntax = syntax_of(static_cast<Format>(format), below(4) > 0);
    if (below(2) == 0) syntax.reasoning = {};
    std::string text;
    for (size_t n = below(12); n > 0; --n) {
      text += fragments[below(fragments.size())];
      if (below(3) > 0) continue;
      text += openings[format][below(openings[format].size())];
      if (below(2) == 0) text += R"({"name": "now", "arguments": {"x": [1])";
      if (below(2) == 0) text += below(2) == 0 ? "}}" : ", ";
    }
    const bool in_reasoning = syntax.reasoning.any() && below(3) == 0;
    const bool cut = below(2) == 0;
    const AnswerParts whole = parse_pieces(syntax, {text}, in_reasoning, cut);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + below(6);
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const AnswerParts split = parse_pieces(syntax, pieces, in_reasoning, cut);
    ASSERT_EQ(shown(split), shown(whole)) << text;
    if (whole.calls.empty() && whole.reasoning.empty() && !in_reasoning &&
        (!syntax.reasoning.any() || text.find("<think>") == std::string::npos)) {
      ASSERT_EQ(whole.text, text);
      ++unchanged;
    }
    const std::vector<CallPart> all = whole_calls(whole);
    for (size_t c = 0; c < all.size(); ++c) {
      const CallPart& call = all[c];
      const bool is_last = c + 1 == all.size();
      broken += call.broken ? 1 : 0;
      if (call.broken || (cut && is_last)) continue;
      ++calls;
      const auto arguments = nlohmann::json::parse(call.arguments, nullptr, false);
      ASSERT_TRUE(arguments.is_object()) << text;
    }
  }
  EXPECT_GT(calls, 300);
  EXPECT_GT(broken, 100);
  EXPECT_GT(unchanged, 1500);
}

}  // namespace
}  // namespace tandem
