#include "engine/host/requests/answer_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

namespace tandem {
namespace {

std::shared_ptr<const ChatTemplate> template_of(const std::string& text) {
  const nlohmann::json config = {{"chat_template", text}};
  auto chat = ChatTemplate::parse("test", config.dump());
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *chat : nullptr;
}

std::vector<Token> tokens_of(const std::string& text) {
  return *Tokenizer::bytes()->encode(text, false);
}

GenerateRequest chat_request(std::vector<std::string> tools) {
  ChatPrompt chat;
  chat.tool_names = std::move(tools);
  GenerateRequest request;
  request.prompt = std::move(chat);
  return request;
}

TEST(AnswerFormat, FollowsTheTemplateOrTheDeployment) {
  const auto tokenizer = Tokenizer::bytes();
  const auto chat = template_of("<tool_call> </think>");
  DeploymentConfig config;
  AnswerFormat format = answer_format_of(config, chat.get(), *tokenizer);
  EXPECT_EQ(format.tools, ToolFormat::kHermes);
  EXPECT_EQ(format.reasoning.open, "<think>");
  EXPECT_TRUE(format.markers.empty()) << "this tokenizer has no special tokens for them";
  config.tool_format = "mistral";
  config.no_reasoning = true;
  format = answer_format_of(config, chat.get(), *tokenizer);
  EXPECT_EQ(format.tools, ToolFormat::kMistral);
  EXPECT_FALSE(format.reasoning.any());
  config = {};
  format = answer_format_of(config, nullptr, *tokenizer);
  EXPECT_EQ(format.tools, ToolFormat::kNone);
  EXPECT_FALSE(format.reasoning.any());
}

TEST(AnswerPlan, IsForChatsWithToolsOrReasoning) {
  const auto tokenizer = Tokenizer::bytes();
  AnswerFormat format;
  format.tools = ToolFormat::kHermes;
  const auto planned = [&](const GenerateRequest& request, const std::string& prompt_end = "") {
    return plan_answer(format, request, *tokenizer, tokens_of(prompt_end));
  };
  EXPECT_FALSE(planned(chat_request({})).has_value());
  const auto tools = planned(chat_request({"now"}));
  ASSERT_TRUE(tools.has_value());
  EXPECT_EQ(tools->syntax.tools, ToolFormat::kHermes);
  EXPECT_FALSE(tools->in_reasoning);
  GenerateRequest raw = chat_request({"now"});
  raw.raw_text = true;
  EXPECT_FALSE(planned(raw).has_value());
  GenerateRequest text;
  text.prompt = "text";
  EXPECT_FALSE(planned(text).has_value());
  format.reasoning = {"<think>", "</think>"};
  const auto reasoning = planned(chat_request({}), "assistant\n<think>\n");
  ASSERT_TRUE(reasoning.has_value());
  EXPECT_EQ(reasoning->syntax.tools, ToolFormat::kNone) << "the request has no tools";
  EXPECT_TRUE(reasoning->in_reasoning);
  EXPECT_FALSE(planned(chat_request({}), "</think>\n\n")->in_reasoning);
}

TEST(CallIds, AreNineLettersAndDigits) {
  std::set<std::string> ids;
  for (int choice = 0; choice < 3; ++choice) {
    for (int index = 0; index < 100; ++index) {
      const std::string id = call_id(1, choice, index);
      EXPECT_EQ(id.size(), 9U);
      EXPECT_TRUE(std::ranges::all_of(id, [](unsigned char c) { return std::isalnum(c) != 0; }));
      ids.insert(id);
    }
  }
  EXPECT_EQ(ids.size(), 300U);
}

}  // namespace
}  // namespace tandem
