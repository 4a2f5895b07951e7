#include "server/openai/translation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "server/openai/request.h"

namespace tandem::openai {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Make = std::unique_ptr<Translation> (*)();

json translated(Make make, const std::string& body) {
  const auto out = make()->request(body);
  EXPECT_TRUE(out.ok()) << body << ": " << out.status();
  if (!out.ok()) return {};
  const auto chat = request_from(Kind::kChat, *out);
  EXPECT_TRUE(chat.ok()) << *out << ": " << chat.status();
  return json::parse(*out);
}

std::string refused(Make make, const std::string& body) {
  const auto out = make()->request(body);
  EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << body << ": " << out.status();
  EXPECT_THAT(std::string(out.status().message()), Not(HasSubstr("SECRET")));
  return std::string(out.status().message());
}

// The events of a stream, each checked to be named by its type.
std::vector<json> translated_events(const std::string& stream) {
  std::vector<json> out;
  for (absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> lines =
        absl::StrSplit(event, absl::MaxSplits('\n', 1));
    absl::string_view data = lines.second;
    EXPECT_TRUE(absl::ConsumePrefix(&data, "data: ")) << event;
    out.push_back(json::parse(data.begin(), data.end()));
    EXPECT_EQ(lines.first, absl::StrCat("event: ", out.back()["type"].get<std::string>()));
  }
  return out;
}

std::vector<std::string> types_of(const std::vector<json>& events) {
  std::vector<std::string> out;
  for (const json& event : events) out.push_back(event["type"]);
  return out;
}

constexpr char kHead[] =
    R"("id":"chatcmpl-req-1","object":"chat.completion","created":1700,"model":"m",)";
constexpr char kUsage[] = R"("usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,
    "prompt_tokens_details":{"cached_tokens":4}})";

std::string chat(const std::string& message, const std::string& reason,
                 const std::string& more = "") {
  return absl::StrCat("{", kHead, R"("choices":[{"index":0,"message":)", message,
                      R"(,"finish_reason":")", reason, "\"}],", kUsage, more, "}");
}

std::string delta(const std::string& members, const std::string& more = "") {
  return absl::StrCat("data: {", kHead, R"("choices":[{"index":0,"delta":{)", members, "}", more,
                      R"(}],"usage":{"prompt_tokens":9,"completion_tokens":1}})", "\n\n");
}

// A stream with reasoning, text and two calls, which comes in pieces.
std::vector<std::string> stream_of_all_kinds() {
  return {delta(R"("role":"assistant","content":"")"),
          delta(R"("reasoning_content":"hm")"),
          delta(R"("content":"a")") + delta(R"("content":"b")"),
          delta(R"("tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":""}}])"),
          delta(R"("tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}}])"),
          delta(R"("tool_calls":[{"index":0,"function":{"arguments":"1}"}}])"),
          delta(R"("tool_calls":[{"index":1,"id":"c2","function":{"name":"g","arguments":"{}"}}])"),
          delta("", R"(,"finish_reason":"tool_calls")"),
          absl::StrCat("data: {", kHead, R"("choices":[],)", kUsage, "}\n\ndata: [DONE]\n\n")};
}

std::vector<json> translated_stream(Make make, const std::vector<std::string>& chat_events) {
  const auto translation = make();
  std::string out;
  for (const std::string& events : chat_events) out += translation->events(events);
  return translated_events(out);
}

TEST(MessagesTranslation, ARequestIsAChat) {
  EXPECT_EQ(translated(messages_translation, R"({"model":"m","max_tokens":5,"temperature":0.5,
      "top_k":4,"stop_sequences":["x"],"system":[{"type":"text","text":"s","cache_control":{}}],
      "metadata":{"user_id":"u"},"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":""},
        {"type":"text","text":"a"},{"type":"tool_use","id":"1","name":"f","input":{"x": 1.0}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"2",
        "content":[{"type":"text","text":"q"}]},{"type":"text","text":"then"}]}],
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
      "tool_choice":{"type":"auto"},"thinking":{"type":"disabled"},"stream":true})"),
            json::parse(R"({"model":"m","max_tokens":5,"temperature":0.5,"top_k":4,"stop":["x"],
      "messages":[{"role":"system","content":[{"type":"text","text":"s"}]},
      {"role":"user","content":"hi"},
      {"role":"assistant","content":[{"type":"text","text":"a"}],"reasoning_content":"t",
       "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"x":1.0}}}]},
      {"role":"tool","tool_call_id":"1","content":"r"},
      {"role":"tool","tool_call_id":"2","content":[{"type":"text","text":"q"}]},
      {"role":"user","content":[{"type":"text","text":"then"}]}],
      "tools":[{"type":"function","function":{"name":"f","description":"d",
                "parameters":{"type":"object"}}}],
      "tool_choice":"auto","chat_template_kwargs":{"enable_thinking":false},
      "stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})"));
}

TEST(MessagesTranslation, WhatIsNotSupportedIsRefusedByName) {
  const auto wrong = [](const std::string& members) {
    return refused(messages_translation, absl::StrCat("{", members, "}"));
  };
  EXPECT_THAT(
      wrong(R"("messages":[{"role":"user","content":[{"type":"image","source":"SECRET"}]}])"),
      HasSubstr("messages[0].content[0].type: another type; allowed: text"));
  EXPECT_THAT(wrong(R"("messages":[{"role":"SECRET","content":"x"}])"),
              HasSubstr("messages[0].role: another role; allowed: user, assistant"));
  EXPECT_THAT(wrong(R"("messages":[])"), HasSubstr("messages: none"));
  const std::string good = R"("messages":[{"role":"user","content":"SECRET"}],)";
  EXPECT_THAT(wrong(good + R"("thinking":{"type":"enabled","budget_tokens":9})"),
              HasSubstr("thinking.type"));
  EXPECT_THAT(wrong(good + R"("tools":[{"type":"web_search_20250305","name":"w"}])"),
              HasSubstr("tools[0].type"));
  EXPECT_THAT(wrong(good + R"("tool_choice":{"type":"SECRET"})"), HasSubstr("tool_choice.type"));
  EXPECT_THAT(wrong(good + R"("mcp_servers":[{}])"), HasSubstr("mcp_servers"));
  EXPECT_THAT(wrong(good + R"("surprise":1)"), HasSubstr("surprise: unknown field"));
  EXPECT_THAT(refused(messages_translation, "[]"), HasSubstr("body"));
}

TEST(MessagesTranslation, AnAnswerHasBlocks) {
  const std::string text = messages_translation()->answer(
      chat(R"({"content":"hi"})", "stop", R"(,"tandem":{"stop_sequence":"X"})"));
  EXPECT_EQ(json::parse(text), json::parse(R"({"id":"msg_req-1","type":"message",
      "role":"assistant","model":"m","content":[{"type":"text","text":"hi"}],
      "stop_reason":"stop_sequence","stop_sequence":"X","usage":{"input_tokens":5,
      "cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":2}})"));
  const json tools = json::parse(
      messages_translation()->answer(chat(R"({"content":null,"reasoning_content":"t","tool_calls":[
              {"id":"1","function":{"name":"f","arguments":"{\"x\":1}"}},
              {"id":"2","function":{"name":"g","arguments":"broken"}}]})",
                                          "tool_calls")));
  EXPECT_EQ(tools["content"], json::parse(R"([{"type":"thinking","thinking":"t","signature":""},
      {"type":"tool_use","id":"1","name":"f","input":{"x":1}},
      {"type":"tool_use","id":"2","name":"g","input":{"arguments":"broken"}}])"));
  EXPECT_EQ(tools["stop_reason"], "tool_use");
  const auto reason = [](const char* finish) {
    return json::parse(messages_translation()->answer(chat("{}", finish)))["stop_reason"];
  };
  EXPECT_EQ(reason("stop"), "end_turn");
  EXPECT_EQ(reason("length"), "max_tokens");
}

TEST(MessagesTranslation, AStreamHasAnthropicsEvents) {
  const auto all = translated_stream(messages_translation, stream_of_all_kinds());
  EXPECT_THAT(types_of(all),
              ElementsAre("message_start", "content_block_start", "content_block_delta",
                          "content_block_stop", "content_block_start", "content_block_delta",
                          "content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_delta", "content_block_stop",
                          "content_block_start", "content_block_delta", "content_block_stop",
                          "message_delta", "message_stop"));
  EXPECT_EQ(all[0]["message"]["usage"]["input_tokens"], 9);
  EXPECT_EQ(all[2]["delta"], json::parse(R"({"type":"thinking_delta","thinking":"hm"})"));
  EXPECT_EQ(all[6]["delta"], json::parse(R"({"type":"text_delta","text":"b"})"));
  EXPECT_EQ(all[6]["index"], 1);
  EXPECT_EQ(all[8]["content_block"],
            json::parse(R"({"type":"tool_use","id":"c1","name":"f","input":{}})"));
  EXPECT_EQ(all[10]["delta"]["partial_json"], "1}");
  EXPECT_EQ(all[13]["index"], 3);
  EXPECT_EQ(all[15], json::parse(R"({"type":"message_delta",
      "delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":5,
      "cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":2}})"));

  const auto empty = translated_stream(
      messages_translation, {delta("", R"(,"finish_reason":"stop")"), "data: [DONE]\n\n"});
  EXPECT_THAT(types_of(empty), ElementsAre("message_start", "content_block_start",
                                           "content_block_stop", "message_delta", "message_stop"));
}

TEST(MessagesTranslation, ErrorsHaveAnthropicsShape) {
  const std::string chat_error = R"({"error":{"message":"m","type":"x","param":null,"code":null}})";
  EXPECT_EQ(json::parse(messages_error(chat_error, 429, "req-1")),
            json::parse(R"({"type":"error","error":{"type":"rate_limit_error","message":"m"},
                            "request_id":"req-1"})"));
  const auto events = translated_events(messages_translation()->error_event(chat_error, 503, ""));
  EXPECT_EQ(events[0]["error"]["type"], "overloaded_error");
  const absl::Status renamed = messages_translation()->renamed(wrong_field("stop[1]", "d"));
  EXPECT_EQ(violations_of(renamed)[0].field, "stop_sequences[1]");
  const absl::Status schema =
      messages_translation()->renamed(wrong_field("tools[1].function.parameters", "d"));
  EXPECT_EQ(violations_of(schema)[0].field, "tools[1].input_schema");
}

TEST(ResponsesTranslation, ARequestIsAChat) {
  EXPECT_EQ(translated(responses_translation, R"({"model":"m","input":"hi","instructions":"i",
      "max_output_tokens":5,"temperature":0,"store":false,"metadata":{},"include":[],
      "tandem":{"method":"ngram"}})"),
            json::parse(R"({"model":"m","max_tokens":5,"temperature":0,"tandem":{"method":"ngram"},
      "messages":[{"role":"system","content":"i"},{"role":"user","content":"hi"}]})"));
  EXPECT_EQ(translated(responses_translation, R"({"model":"m","stream":true,"input":[
      {"role":"user","content":[{"type":"input_text","text":"a"}]},
      {"type":"reasoning","id":"r","summary":[]},
      {"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\": 1}"},
      {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
      {"type":"function_call_output","call_id":"1","output":"o"},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}],
      "tools":[{"type":"function","name":"f","parameters":{},"strict":true}],
      "tool_choice":"auto","text":{"format":{"type":"text"}}})"),
            json::parse(R"({"model":"m","messages":[
      {"role":"user","content":[{"type":"text","text":"a"}]},
      {"role":"assistant","content":null,"tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},
        {"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"1","content":"o"},
      {"role":"assistant","content":[{"type":"text","text":"b"}]}],
      "tools":[{"type":"function","function":{"name":"f","parameters":{},"strict":true}}],
      "tool_choice":"auto","stream":true,"stream_options":{"include_usage":true}})"));
}

TEST(ResponsesTranslation, FormatsBecomeResponseFormats) {
  const auto out = responses_translation()->request(R"({"model":"m","input":"x","text":{"format":
      {"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}}})");
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(json::parse(*out)["response_format"],
            json::parse(R"({"type":"json_schema","json_schema":{"name":"n",
                            "schema":{"type":"object"},"strict":true}})"));
}

TEST(ResponsesTranslation, WhatIsNotSupportedIsRefusedByName) {
  const auto wrong = [](const std::string& members) {
    return refused(responses_translation, absl::StrCat("{", members, "}"));
  };
  EXPECT_THAT(wrong(R"("model":"m")"), HasSubstr("input: none"));
  EXPECT_THAT(wrong(R"("input":[{"type":"item_reference","id":"SECRET"}])"),
              HasSubstr("input[0].type: another type; allowed: message"));
  EXPECT_THAT(wrong(R"("input":[{"role":"user","content":[{"type":"input_image"}]}])"),
              HasSubstr("input[0].content[0].type"));
  for (const char* const member :
       {R"("store":true)", R"("previous_response_id":"SECRET")", R"("background":true)",
        R"("conversation":{})", R"("tools":[{"type":"web_search"}])", R"("truncation":"auto")",
        R"("include":["file_search_call.results"])", R"("surprise":1)"}) {
    const std::string name = std::string(member).substr(1, std::string(member).find(':') - 2);
    EXPECT_THAT(wrong(absl::StrCat(R"("input":"x",)", member)), HasSubstr(name)) << member;
  }
}

TEST(ResponsesTranslation, AnAnswerHasItems) {
  const json all = json::parse(
      responses_translation()->answer(chat(R"({"content":"hi","reasoning_content":"t","tool_calls":[
              {"id":"1","function":{"name":"f","arguments":"{}"}}]})",
                                           "tool_calls")));
  EXPECT_EQ(all["id"], "resp_req-1");
  EXPECT_EQ(all["status"], "completed");
  EXPECT_EQ(all["output"], json::parse(R"([
      {"type":"reasoning","id":"rs_req-1_0","summary":[],
       "content":[{"type":"reasoning_text","text":"t"}]},
      {"type":"message","id":"msg_req-1_1","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"hi","annotations":[]}]},
      {"type":"function_call","id":"fc_req-1_2","call_id":"1","name":"f","arguments":"{}",
       "status":"completed"}])"));
  EXPECT_EQ(all["usage"], json::parse(R"({"input_tokens":9,
      "input_tokens_details":{"cached_tokens":4},"output_tokens":2,
      "output_tokens_details":{"reasoning_tokens":0},"total_tokens":11})"));
  const json cut =
      json::parse(responses_translation()->answer(chat(R"({"content":"hi"})", "length")));
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(cut["output"][0]["status"], "incomplete");
}

TEST(ResponsesTranslation, AStreamHasOpenAisEvents) {
  const auto all = translated_stream(responses_translation, stream_of_all_kinds());
  const std::string item = "response.output_item.";
  EXPECT_THAT(
      types_of(all),
      ElementsAre("response.created", "response.in_progress", item + "added",
                  "response.reasoning_text.delta", "response.reasoning_text.done", item + "done",
                  item + "added", "response.content_part.added", "response.output_text.delta",
                  "response.output_text.delta", "response.output_text.done",
                  "response.content_part.done", item + "done", item + "added",
                  "response.function_call_arguments.delta",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  item + "done", item + "added", "response.function_call_arguments.delta",
                  "response.function_call_arguments.done", item + "done", "response.completed"));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i]["sequence_number"], i);
  EXPECT_EQ(all[10]["text"], "ab");
  EXPECT_EQ(all[16]["arguments"], "{\"x\":1}");
  EXPECT_EQ(all[0]["response"]["output"], json::array());
  const json& output = all.back()["response"]["output"];
  ASSERT_EQ(output.size(), 4U);
  EXPECT_EQ(output[3]["call_id"], "c2");
  EXPECT_EQ(all.back()["response"]["usage"]["total_tokens"], 11);
}

TEST(ResponsesTranslation, ErrorsHaveOpenAisShape) {
  const std::string chat_error = R"({"error":{"message":"m","type":"x","param":"p","code":"c"}})";
  EXPECT_EQ(responses_translation()->error(chat_error, 400, "r"), chat_error);
  const auto events = translated_events(responses_translation()->error_event(chat_error, 500, ""));
  EXPECT_EQ(events[0], json::parse(R"({"type":"error","code":"c","message":"m","param":"p",
                                       "sequence_number":0})"));
  const absl::Status renamed = responses_translation()->renamed(wrong_field("max_tokens", "d"));
  EXPECT_EQ(violations_of(renamed)[0].field, "max_output_tokens");
  const absl::Status schema =
      responses_translation()->renamed(wrong_field("tools[1].function.parameters", "d"));
  EXPECT_EQ(violations_of(schema)[0].field, "tools[1].parameters");
}

}  // namespace
}  // namespace tandem::openai
