#include "engine/host/requests/tool_prompt.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr char kPhi4Template[] = "{{ message['content'] + '<|tool|>' + message['tools'] }}";
constexpr char kGemmaTemplate[] = "<start_of_turn>{{ message['content'] }}";

ChatPrompt chat_of(const std::string& messages) {
  ChatPrompt chat;
  chat.messages_json = messages;
  chat.tools_json = R"([{"type":"function","function":{"name":"now","parameters":{}}}])";
  return chat;
}

TEST(ToolPrompt, TemplatesWithToolsGetThemUnchanged) {
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kGemma, ToolFormat::kPhi4}) {
    const ChatPrompt chat = with_tools_in_messages(chat_of(R"([{"role":"user","content":1.0}])"),
                                                   "{% for tool in tools %}", format);
    EXPECT_EQ(chat.messages_json, R"([{"role":"user","content":1.0}])");
    EXPECT_FALSE(chat.tools_json.empty());
  }
}

TEST(ToolPrompt, Phi4ReadsToolsFromTheSystemMessage) {
  const ChatPrompt chat = with_tools_in_messages(
      chat_of(R"([{"role":"user","content":"?"},{"role":"assistant","content":"","tool_calls":[
          {"id":"1","type":"function","function":{"name":"now","arguments":{"a":1}}}]}])"),
      kPhi4Template, ToolFormat::kPhi4);
  EXPECT_TRUE(chat.tools_json.empty());
  const Json messages = Json::parse(chat.messages_json);
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["tools"], R"([{"name":"now","parameters":{}}])");
  EXPECT_EQ(messages[2]["content"],
            R"(<|tool_call|>[{"name":"now","arguments":{"a":1}}]<|/tool_call|>)");
}

TEST(ToolPrompt, GemmaReadsToolsInText) {
  const ChatPrompt chat = with_tools_in_messages(
      chat_of(R"([{"role":"system","content":"Be kind."},{"role":"user","content":"?"},
          {"role":"assistant","content":"Ok.","tool_calls":[
            {"function":{"name":"now","arguments":{"a":1}}}]},
          {"role":"tool","content":"18"},{"role":"tool","content":"19"},
          {"role":"assistant","content":"Done."}])"),
      kGemmaTemplate, ToolFormat::kGemma);
  const Json messages = Json::parse(chat.messages_json);
  ASSERT_EQ(messages.size(), 5U);
  const auto system = messages[0]["content"].get<std::string>();
  EXPECT_EQ(system.substr(0, 9), "Be kind.\n");
  EXPECT_NE(system.find("\"name\": \"now\""), std::string::npos);
  EXPECT_EQ(messages[2]["content"], "Ok.\n{\"name\":\"now\",\"parameters\":{\"a\":1}}");
  EXPECT_FALSE(messages[2].contains("tool_calls"));
  EXPECT_EQ(messages[3], Json::parse(R"({"role":"user","content":"Result: 18\nResult: 19"})"));
}

TEST(ToolPrompt, ChatsWithoutToolsAreUnchanged) {
  ChatPrompt chat = chat_of(R"([{"role":"user","content":1.0}])");
  chat.tools_json.clear();
  EXPECT_EQ(with_tools_in_messages(chat, kGemmaTemplate, ToolFormat::kGemma).messages_json,
            chat.messages_json);
  // The template reports what is no list of objects.
  EXPECT_EQ(
      with_tools_in_messages(chat_of("[1]"), kGemmaTemplate, ToolFormat::kGemma).messages_json,
      "[1]");
  const std::string deep =
      "[{\"content\":" + std::string(100000, '[') + std::string(100000, ']') + "}]";
  EXPECT_EQ(with_tools_in_messages(chat_of(deep), kGemmaTemplate, ToolFormat::kGemma).messages_json,
            deep);
}

}  // namespace
}  // namespace tandem
