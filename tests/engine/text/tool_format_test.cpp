#include "engine/text/tool_format.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(ToolFormat, IsChosenByTheTemplatesMarkers) {
  EXPECT_EQ(tool_format_of("... <tool_call>\\n{\"name\": <function-name>"), ToolFormat::kHermes);
  EXPECT_EQ(tool_format_of("<|start_header_id|>ipython ... tools is not none"),
            ToolFormat::kLlama3);
  EXPECT_EQ(tool_format_of("{{ '<|python_tag|>' + x }}"), ToolFormat::kLlama3);
  EXPECT_EQ(tool_format_of("[AVAILABLE_TOOLS] [TOOL_CALLS] ["), ToolFormat::kMistral);
  EXPECT_EQ(tool_format_of("'<|tool|>' + message['tools'] + '<|/tool|>'"), ToolFormat::kPhi4);
  EXPECT_EQ(tool_format_of("<start_of_turn>model"), ToolFormat::kGemma);
  EXPECT_EQ(tool_format_of("<|im_start|>"), ToolFormat::kNone);
  EXPECT_EQ(tool_format_of("<tool_call>\n<function=x>"), ToolFormat::kNone) << "another format";
  EXPECT_EQ(tool_format_of(""), ToolFormat::kNone);
}

TEST(ToolFormat, NamesAreReversible) {
  for (const char* name : {"none", "hermes", "llama3", "mistral", "phi4", "gemma"}) {
    const auto format = parse_tool_format(name);
    ASSERT_TRUE(format.has_value()) << name;
    EXPECT_EQ(tool_format_name(*format), name);
    EXPECT_NE(kToolFormatNames.find(name), std::string_view::npos);
  }
  EXPECT_FALSE(parse_tool_format("Hermes").has_value());
}

TEST(ReasoningTags, AreThoseOfTheTemplate) {
  EXPECT_EQ(reasoning_tags_of("content.split('</think>')"), (ReasoningTags{"<think>", "</think>"}));
  EXPECT_EQ(reasoning_tags_of("assistant\n<think>\n"), (ReasoningTags{"<think>", "</think>"}));
  EXPECT_EQ(reasoning_tags_of("[THINK]x[/THINK]"), (ReasoningTags{"[THINK]", "[/THINK]"}));
  EXPECT_FALSE(reasoning_tags_of("<|im_start|>").any());
}

TEST(ReasoningTags, APromptMayOpenTheBlock) {
  const ReasoningTags think{"<think>", "</think>"};
  EXPECT_TRUE(ends_in_reasoning("assistant\n<think>\n", think));
  EXPECT_TRUE(ends_in_reasoning("<think>", think));
  EXPECT_FALSE(ends_in_reasoning("<think>\n\n</think>\n\n", think));
  EXPECT_FALSE(ends_in_reasoning("assistant\n", think));
  EXPECT_FALSE(ends_in_reasoning("<think>\n", ReasoningTags{}));
}

TEST(MarkerTokens, AreThoseOfFormatAndReasoning) {
  EXPECT_EQ(marker_tokens(ToolFormat::kLlama3, {"<think>", "</think>"}),
            (std::vector<std::string>{"<|python_tag|>", "<think>", "</think>"}));
  EXPECT_TRUE(marker_tokens(ToolFormat::kNone, {}).empty());
}

}  // namespace
}  // namespace tandem
