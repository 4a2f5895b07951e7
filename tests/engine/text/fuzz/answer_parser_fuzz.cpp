// Answers in pieces, of valid UTF-8: the parts do not depend on the pieces, no text is lost, and
// every call that is not broken is a JSON object with a name.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/answer_parser.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;

// Content, reasoning and calls, independent of the pieces.
std::string parsed(const AnswerSyntax& syntax, const std::vector<std::string>& pieces,
                   bool in_reasoning, bool cut) {
  AnswerParser parser(syntax, in_reasoning);
  AnswerParts parts;
  for (const std::string& piece : pieces) parser.push(piece, &parts);
  parser.finish(cut, &parts);
  std::vector<CallPart> calls;
  for (const CallPart& part : parts.calls) {
    const auto index = static_cast<size_t>(part.index);
    check(index <= calls.size(), "a gap between the indices of calls");
    if (index == calls.size()) calls.push_back({part.index, "", part.name, "", false});
    calls[index].arguments += part.arguments;
    calls[index].broken = part.broken;
  }
  std::string out = absl::StrCat(parts.text, "\n", parts.reasoning);
  for (const CallPart& call : calls) {
    check(!call.name.empty(), "a call without a name");
    const auto arguments = nlohmann::json::parse(call.arguments, nullptr, false);
    check(call.broken || cut || arguments.is_object(), "arguments", call.arguments);
    absl::StrAppend(&out, "\n", call.name, "(", call.arguments, ")", call.broken ? " broken" : "");
  }
  return out;
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  FuzzedDataProvider in(data, size);
  AnswerSyntax syntax;
  syntax.tools = in.PickValueInArray({ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kLlama3,
                                      ToolFormat::kMistral, ToolFormat::kPhi4, ToolFormat::kGemma});
  syntax.names = {"now", "get_weather"};
  syntax.parallel = in.ConsumeBool();
  if (in.ConsumeBool()) syntax.reasoning = {"<think>", "</think>"};
  const bool in_reasoning = syntax.reasoning.any() && in.ConsumeBool();
  const bool cut = in.ConsumeBool();
  const auto step = in.ConsumeIntegralInRange<size_t>(1, 9);
  const std::string bytes = in.ConsumeRemainingBytesAsString();
  Utf8Assembler utf8;
  std::string text;
  std::vector<std::string> pieces;
  for (size_t at = 0; at < bytes.size(); at += step) {
    utf8.push(bytes.substr(at, step), pieces.emplace_back());
    text += pieces.back();
  }
  utf8.finish(pieces.emplace_back());
  text += pieces.back();
  const std::string whole = parsed(syntax, {text}, in_reasoning, cut);
  check(parsed(syntax, pieces, in_reasoning, cut) == whole, "parts that depend on the pieces",
        text);
  return 0;
}
